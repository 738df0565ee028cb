"""Metrics hold the state of the whole data on every rank.

An update adds to a metric's variables; inside a step, what a slice added is summed over the ranks before it is kept, so
`result()`, resets, callbacks and everything else work unchanged, anywhere. Three cases:

    rows    the update got rows of the slice, and the state of a batch is the sum of the states of its slices
    scalar  the update got numbers for the whole slice (a loss): they are weighted by n_r/n, as the loss itself is;
            where the weight is the number of rows, the sum is right already
    gather  the state does not add up (a maximum, a user's function that returns one number): every rank gets the rows
            of all ranks and makes the same update
"""

import inspect
import threading
import weakref

import tensorflow as tf

from matexrun.collectives import ops
from matexrun.errors import InexactError
from matexrun.inject import patching, step

_local = threading.local()

# User-written metrics that a probe has found to add up (`probe.metrics`).
additive: "weakref.WeakSet" = weakref.WeakSet()


def patch() -> None:
    """Patch `update_state` of every Metric class, the user's included."""
    from keras.src.metrics.metric import Metric
    from keras.src.trainers import compile_utils

    containers = (compile_utils.CompileMetrics, compile_utils.MetricsList)

    @patching.overrides(Metric, "update_state")
    def update_state(original, self, *args, **kwargs):
        current = step.current()
        if current is None or getattr(_local, "inside", False) or not current.is_on(tf.nest.flatten((args, kwargs))):
            return original(self, *args, **kwargs)
        if isinstance(self, containers):
            if getattr(_local, "pending", None) is not None:
                return original(self, *args, **kwargs)
            if isinstance(self, compile_utils.CompileMetrics) and not self.built:
                self.build(*args[:2])
            _local.pending = []
            try:
                result = original(self, *args, **kwargs)
                _keep(_local.pending, current)
                return result
            finally:
                _local.pending = None
        _local.inside = True
        try:
            return _update(original, self, args, kwargs, current)
        finally:
            _local.inside = False


def _update(original, metric, args, kwargs, current):
    kind = classify(metric, args, kwargs)
    if kind == "gather":
        if current.jit:
            raise InexactError(
                f"the metric {metric.name!r} does not add up over slices of a batch, and XLA cannot gather its rows: "
                "compile the model with jit_compile=False"
            )
        args, kwargs = _gathered((args, kwargs), current)
        result = original(metric, *args, **kwargs)
        current.settles(metric.variables)
        return result
    _build_late(metric, args)
    before = _values(metric)
    result = original(metric, *args, **kwargs)
    if len(metric.variables) != len(before):
        raise InexactError(
            f"the metric {metric.name!r} creates variables in update_state, so the state before its first update is "
            "unknown; create them in __init__ (add_variable)"
        )
    changes = []
    for variable, old in zip(metric.variables, before, strict=True):
        change = tf.convert_to_tensor(variable.value) - old
        if kind == "scalar":
            change = change * tf.cast(current.share, change.dtype)
        changes.append((variable, old, tf.where(current.counts, change, tf.zeros_like(change))))
    pending = getattr(_local, "pending", None)
    if pending is None:
        _keep(changes, current)
    else:
        pending += changes
    return result


def _keep(changes: list, current) -> None:
    """Sum the changes of all ranks, in one collective, and keep them."""
    if not changes:
        return
    summed = ops.allreduce([change for _, _, change in changes], current.order)
    for (variable, old, _), change in zip(changes, summed, strict=True):
        variable.assign(old + change)
    current.settles(variable for variable, _, _ in changes)


def _values(metric) -> list:
    return [tf.identity(variable.value) for variable in metric.variables]


def _build_late(metric, args) -> None:
    """AUC(multi_label=True), F1Score and R2Score make their variables at the first update; have them before it.

    Their _build takes the shape of y_pred, or of y_true and y_pred (Keras 3.10 and 3.15).
    """
    if getattr(metric, "_built", True) is False and hasattr(metric, "_build"):
        shapes = [tf.convert_to_tensor(tensor).shape for tensor in args[:2]]
        metric._build(*shapes[-len(inspect.signature(metric._build).parameters) :])


def classify(metric, args, kwargs) -> str:
    """ "rows", "scalar" or "gather" for this update (see the top of the file)."""
    tensors = [leaf for leaf in tf.nest.flatten((args, kwargs)) if hasattr(leaf, "shape")]
    if not any(len(tensor.shape) for tensor in tensors):
        return _scalar_kind(metric, args, kwargs)
    if metric in additive:
        return "rows"
    if _updates_by_itself(metric) or _returns_one_number(metric, args):
        return "gather"
    return "rows"


def _scalar_kind(metric, args, kwargs) -> str:
    from keras.src.metrics.reduction_metrics import Sum

    weight = kwargs.get("sample_weight", args[1] if len(args) > 1 else None)
    if isinstance(metric, Sum):
        return "rows"  # a sum that the script has taken over its rows
    if weight is None:
        return "scalar"
    integer = isinstance(weight, int) or getattr(weight, "dtype", None) in (tf.int32, tf.int64)
    return "rows" if integer else "scalar"  # Keras weights its loss trackers by the number of rows, an integer


def written_by_user(metric) -> bool:
    """Whether the user wrote this metric's update_state, or the function that it wraps."""
    return _updates_by_itself(metric) or user_function(metric) is not None


def _updates_by_itself(metric) -> bool:
    """Whether the user wrote this metric's update_state."""
    owner = next(cls for cls in type(metric).__mro__ if "update_state" in cls.__dict__)
    return not owner.__module__.startswith("keras.")


def user_function(metric):
    """The function of the user's that a metric wraps, or None."""
    function = getattr(metric, "_fn", None)
    if function is None:
        return None
    module = getattr(function, "__module__", None) or type(function).__module__
    return None if module.startswith("keras.") else function


def _returns_one_number(metric, args) -> bool:
    """Whether a metric wraps a function that gives one number for all rows, instead of one for each."""
    return (
        getattr(metric, "_fn", None) is not None
        and not metric._fn(*args[:2], **getattr(metric, "_fn_kwargs", {})).shape.rank
    )


def _gathered(structure, current):
    """The same arguments with the rows of all ranks, in the order of the batch; masks are gathered too."""
    from keras.src.backend.common.masking import get_keras_mask, set_keras_mask

    def gather(leaf):
        if not hasattr(leaf, "shape") or len(leaf.shape) == 0:
            return leaf
        mask = get_keras_mask(leaf)
        leaf = tf.convert_to_tensor(leaf)
        rows = ops.allgather_rows(leaf[: _count(leaf, current)], current.order)
        rows = tf.ensure_shape(rows, [None, *leaf.shape[1:]])
        if mask is not None:
            set_keras_mask(
                rows,
                tf.ensure_shape(
                    ops.allgather_rows(mask[: _count(mask, current)], current.order), [None, *mask.shape[1:]]
                ),
            )
        return rows

    return tf.nest.map_structure(gather, structure)


def _count(leaf, current):
    """Rows of `leaf` that are this rank's own: none of a borrowed row."""
    return tf.where(current.counts, tf.shape(leaf)[0], 0)
