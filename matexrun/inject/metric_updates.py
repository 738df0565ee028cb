"""Metrics hold the state of the whole data on every rank, those of Keras 3 and those of tf_keras.

An update adds to a metric's variables; inside a step, what a slice added is summed over the ranks before it is kept, so
`result()`, resets, callbacks and everything else work unchanged, anywhere. Three cases:

    rows    the update got rows of the slice, and the state of a batch is the sum of the states of its slices
    scalar  the update got numbers for the whole slice (a loss): they are weighted by n_r/n, as the loss itself is;
            where the weight is the number of rows, the sum is right already
    gather  the state does not add up (a maximum, a user's function that returns one number): every rank gets the rows
            of all ranks and makes the same update
"""

import contextlib
import threading
import weakref

import tensorflow as tf

from matexrun.collectives import ops
from matexrun.errors import InexactError
from matexrun.inject import step


class Updates:
    """What happens in `update_state`. Its subclasses know what is different in each Keras.

    package: its name, with a dot.  adder: the method by which a metric's __init__ makes variables.
    additive: the user-written metrics that a probe has found to add up.
    """

    package: str
    adder: str

    def __init__(self):
        self.additive: weakref.WeakSet = weakref.WeakSet()
        self._local = threading.local()

    def sum_class(self) -> type:
        """The metric that is a plain sum."""
        raise NotImplementedError

    def build_late(self, metric, args) -> None:
        """Have the variables of metrics that make them at their first update."""
        raise NotImplementedError

    def returns_one_number(self, metric, args) -> bool:
        """Whether a metric wraps a function that gives one number for all rows, instead of one for each."""
        raise NotImplementedError

    def mask_of(self, tensor):
        """The mask that Keras keeps with a tensor, or None."""
        raise NotImplementedError

    def set_mask(self, tensor, mask) -> None:
        """Keep a mask with a tensor."""
        raise NotImplementedError

    def step_of(self, args, kwargs):
        """The current step, where an update with these arguments belongs to its slice; None elsewhere, also inside of
        another update."""
        current = step.current()
        inside = getattr(self._local, "inside", False)
        return None if current is None or inside or not current.is_on(tf.nest.flatten((args, kwargs))) else current

    def update(self, original, metric, args, kwargs, current):
        """`metric.update_state(*args, **kwargs)` in the step `current`."""
        self._local.inside = True
        try:
            return self._update(original, metric, args, kwargs, current)
        finally:
            self._local.inside = False

    @contextlib.contextmanager
    def together(self, current):
        """The changes of all metrics that are updated inside are summed over the ranks in one collective at the end."""
        if getattr(self._local, "pending", None) is not None:
            yield
            return
        self._local.pending = []
        try:
            yield
            _keep(self._local.pending, current)
        finally:
            self._local.pending = None

    def _update(self, original, metric, args, kwargs, current):
        kind = self.classify(metric, args, kwargs)
        if kind == "gather":
            args, kwargs = self.gathered(metric, (args, kwargs), current)
            result = original(metric, *args, **kwargs)
            current.settles(metric.variables)
            return result
        self.build_late(metric, args)
        before = [tf.identity(variable) for variable in metric.variables]
        result = original(metric, *args, **kwargs)
        if len(metric.variables) != len(before):
            raise InexactError(
                f"the metric {metric.name!r} creates variables in update_state, so the state before its first update "
                f"is unknown; create them in __init__ ({self.adder})"
            )
        changes = []
        for variable, old in zip(metric.variables, before, strict=True):
            change = tf.convert_to_tensor(variable) - old
            if kind == "scalar":
                change = change * tf.cast(current.share, change.dtype)
            changes.append((variable, old, tf.where(current.counts, change, tf.zeros_like(change))))
        if getattr(self._local, "pending", None) is None:
            _keep(changes, current)
        else:
            self._local.pending += changes
        return result

    def classify(self, metric, args, kwargs) -> str:
        """ "rows", "scalar" or "gather" for this update (see the top of the file)."""
        tensors = [leaf for leaf in tf.nest.flatten((args, kwargs)) if hasattr(leaf, "shape")]
        if not any(len(tensor.shape) for tensor in tensors):
            return self._scalar_kind(metric, args, kwargs)
        if metric in self.additive:
            return "rows"
        if self._updates_by_itself(metric) or self.returns_one_number(metric, args):
            return "gather"
        return "rows"

    def _scalar_kind(self, metric, args, kwargs) -> str:
        if isinstance(metric, self.sum_class()):
            return "rows"  # a sum that the script has taken over its rows
        weight = kwargs.get("sample_weight", args[1] if len(args) > 1 else None)
        integer = isinstance(weight, int) or getattr(weight, "dtype", None) in (tf.int32, tf.int64)
        return "rows" if integer else "scalar"  # Keras weights its loss trackers by the number of rows, an integer

    def written_by_user(self, metric) -> bool:
        """Whether the user wrote this metric's update_state, or the function that it wraps."""
        return self._updates_by_itself(metric) or self.user_function(metric) is not None

    def _updates_by_itself(self, metric) -> bool:
        """Whether the user wrote this metric's update_state."""
        owner = next(cls for cls in type(metric).__mro__ if "update_state" in cls.__dict__)
        return not owner.__module__.startswith(self.package)

    def user_function(self, metric):
        """The function of the user's that a metric wraps, or None."""
        function = getattr(metric, "_fn", None)
        if function is None:
            return None
        module = getattr(function, "__module__", None) or type(function).__module__
        return None if module.startswith(self.package) else function

    def gathered(self, metric, structure, current):
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
            rows, mask = rows_of_all(leaf), self.mask_of(leaf)
            if mask is not None:
                self.set_mask(rows, rows_of_all(mask))
            return rows

        return tf.nest.map_structure(gather, structure)


def _keep(changes: list, current) -> None:
    """Sum the changes [(variable, value before, change)] of all ranks, in one collective, and keep them."""
    summed = ops.allreduce([change for _, _, change in changes], current.order)
    for (variable, old, _), change in zip(changes, summed, strict=True):
        variable.assign(old + change)
    current.settles(variable for variable, _, _ in changes)
