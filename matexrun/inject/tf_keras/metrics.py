"""tf_keras metrics hold the state of the whole data on every rank; how, and the three cases, is told in
`keras3.metrics`."""

import contextlib
import inspect
import threading
import weakref

import tensorflow as tf

from matexrun.collectives import ops
from matexrun.errors import InexactError
from matexrun.inject import patching, step

_local = threading.local()

# User-written metrics that a probe has found to add up (`probe`).
additive: "weakref.WeakSet" = weakref.WeakSet()


def patch() -> None:
    """Patch `update_state` of every Metric class, the user's included, and of MetricsContainer, which is
    compile(metrics=...)."""
    from tf_keras.src.engine.compile_utils import MetricsContainer
    from tf_keras.src.metrics.base_metric import Metric
    from tf_keras.src.metrics.py_metric import PyMetric

    @patching.overrides(Metric, "update_state")
    def update_state(original, self, *args, **kwargs):
        current = step.current()
        if current is None or getattr(_local, "inside", False) or not current.is_on(tf.nest.flatten((args, kwargs))):
            return original(self, *args, **kwargs)
        _local.inside = True
        try:
            return _update(original, self, args, kwargs, current)
        finally:
            _local.inside = False

    @patching.method(MetricsContainer, "update_state", ("y_true", "y_pred"))
    def compiled_metrics(original, self, *args, **kwargs):
        current = step.current()
        if current is None:
            return original(self, *args, **kwargs)
        with together(current):
            return original(self, *args, **kwargs)

    @patching.method(PyMetric, "__init__", ("name",))
    def python_metric(original, self, *args, **kwargs):
        """Its update_state runs in Python, in a thread of TensorFlow's that knows of no step."""
        original(self, *args, **kwargs)
        update = self.update_state

        def gathered_update(y_true, y_pred, sample_weight=None):
            current = step.current()
            if current is not None:
                y_true, y_pred, sample_weight = _gathered(self, (y_true, y_pred, sample_weight), current)
            return update(y_true, y_pred, sample_weight)

        self.update_state = gathered_update


@contextlib.contextmanager
def together(current):
    """The changes of all metrics that are updated inside are summed over the ranks in one collective at the end."""
    if getattr(_local, "pending", None) is not None:
        yield
        return
    _local.pending = []
    try:
        yield
        _keep(_local.pending, current)
    finally:
        _local.pending = None


def _update(original, metric, args, kwargs, current):
    kind = classify(metric, args, kwargs)
    if kind == "gather":
        args, kwargs = _gathered(metric, (args, kwargs), current)
        result = original(metric, *args, **kwargs)
        current.settles(metric.variables)
        return result
    _build_late(metric, args)
    before = [tf.identity(variable) for variable in metric.variables]
    result = original(metric, *args, **kwargs)
    if len(metric.variables) != len(before):
        raise InexactError(
            f"the metric {metric.name!r} creates variables in update_state, so the state before its first update is "
            "unknown; create them in __init__ (add_weight)"
        )
    changes = []
    for variable, old in zip(metric.variables, before, strict=True):
        change = tf.convert_to_tensor(variable) - old
        if kind == "scalar":
            change = change * tf.cast(current.share, change.dtype)
        changes.append((variable, old, tf.where(current.counts, change, tf.zeros_like(change))))
    if getattr(_local, "pending", None) is None:
        _keep(changes, current)
    else:
        _local.pending += changes
    return result


def _keep(changes: list, current) -> None:
    """Sum the changes of all ranks, in one collective, and keep them."""
    summed = ops.allreduce([change for _, _, change in changes], current.order)
    for (variable, old, _), change in zip(changes, summed, strict=True):
        variable.assign(old + change)
    current.settles(variable for variable, _, _ in changes)


def _build_late(metric, args) -> None:
    """AUC(multi_label=True), F1Score, R2Score and MeanTensor make their variables at the first update; have them before
    it.

    They do so in a method that takes the shape of y_pred, or of y_true and y_pred (tf_keras 2.18 and 2.21).
    """
    for flag, method in (("_built", "_build"), ("built", "build")):
        if getattr(metric, flag, True) is False:
            shapes = [tf.convert_to_tensor(tensor).shape for tensor in args[:2]]
            build = getattr(metric, method)
            build(*shapes[-len(inspect.signature(build).parameters) :])


def classify(metric, args, kwargs) -> str:
    """ "rows", "scalar" or "gather" for this update (see `keras3.metrics`)."""
    tensors = [leaf for leaf in tf.nest.flatten((args, kwargs)) if hasattr(leaf, "shape")]
    if not any(len(tensor.shape) for tensor in tensors):
        return _scalar_kind(metric, args, kwargs)
    if metric in additive:
        return "rows"
    if _updates_by_itself(metric) or _returns_one_number(metric, args):
        return "gather"
    return "rows"


def _scalar_kind(metric, args, kwargs) -> str:
    from tf_keras.src.metrics.base_metric import Sum

    if isinstance(metric, Sum):
        return "rows"  # a sum that the script has taken over its rows
    weight = kwargs.get("sample_weight", args[1] if len(args) > 1 else None)
    integer = isinstance(weight, int) or getattr(weight, "dtype", None) in (tf.int32, tf.int64)
    return "rows" if integer else "scalar"  # tf_keras weights its loss trackers by the number of rows, an integer


def written_by_user(metric) -> bool:
    """Whether the user wrote this metric's update_state, or the function that it wraps."""
    return _updates_by_itself(metric) or user_function(metric) is not None


def _updates_by_itself(metric) -> bool:
    owner = next(cls for cls in type(metric).__mro__ if "update_state" in cls.__dict__)
    return not owner.__module__.startswith("tf_keras.")


def user_function(metric):
    """The function of the user's that a metric wraps, or None."""
    function = getattr(metric, "_fn", None)
    if function is None:
        return None
    module = getattr(function, "__module__", None) or type(function).__module__
    return None if module.startswith("tf_keras.") else function


def _returns_one_number(metric, args) -> bool:
    """Whether a metric wraps a function of the user's that gives one number for all rows, instead of one for each."""
    function = user_function(metric)
    if function is None:
        return False
    y_true, y_pred = (tf.cast(tensor, metric.dtype) for tensor in args[:2])
    autograph = tf.__internal__.autograph
    function = autograph.tf_convert(function, autograph.control_status_ctx(), convert_by_default=False)
    return not function(y_true, y_pred, **metric._fn_kwargs).shape.rank


def _gathered(metric, structure, current):
    """The same arguments with the rows of all ranks, in the order of the batch; masks are gathered too."""
    if current.jit:
        raise InexactError(
            f"the metric {metric.name!r} does not add up over slices of a batch, and XLA cannot gather its rows: "
            "compile the model with jit_compile=False"
        )

    def rows_of_all(leaf):
        mine = tf.where(current.counts, tf.shape(leaf)[0], 0)  # none of a borrowed row
        rows = ops.allgather_rows(tf.convert_to_tensor(leaf)[:mine], current.order)
        return tf.ensure_shape(rows, [None, *leaf.shape[1:]])

    def gather(leaf):
        if not hasattr(leaf, "shape") or len(leaf.shape) == 0:
            return leaf
        rows, mask = rows_of_all(leaf), getattr(leaf, "_keras_mask", None)
        if mask is not None:
            rows._keras_mask = rows_of_all(mask)
        return rows

    return tf.nest.map_structure(gather, structure)
