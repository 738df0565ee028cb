"""The step in progress: which part of the global batch this rank computes, for the patches that run inside a step.

A step exists while TensorFlow traces (or, eagerly, runs) the model's train_step or test_step on a slice of a batch.
"""

import contextlib
import dataclasses
import threading
from typing import Any

from matexrun.collectives.ops import Order


@dataclasses.dataclass
class Step:
    """rows: n_r, rows of this rank's slice; total: n, rows of the whole batch (int32 scalar tensors). A rank with no
    rows computes one borrowed row, which must not count. order: the token of all collectives of this step."""

    model: Any
    rows: Any
    total: Any
    training: bool
    order: Order
    jit: bool
    graph: Any = None  # the FuncGraph that is being traced, None when the step runs eagerly
    weighted: set = dataclasses.field(
        default_factory=set
    )  # ids of optimizers whose loss is weighted by the share already

    @property
    def share(self):
        """n_r / n (float32 scalar): the weight of this rank's slice in the batch."""
        import tensorflow as tf

        return tf.cast(self.rows, tf.float32) / tf.cast(tf.maximum(self.total, 1), tf.float32)

    @property
    def scale(self):
        """n / n_r (float32 scalar): makes the sum over a slice a mean-type value; of the borrowed row, n."""
        import tensorflow as tf

        return tf.cast(self.total, tf.float32) / tf.cast(tf.maximum(self.rows, 1), tf.float32)

    @property
    def counts(self):
        """Whether this rank has rows of its own (bool scalar)."""
        return self.rows > 0


_local = threading.local()


def current() -> Step | None:
    """The step that is being traced or run in this thread."""
    return getattr(_local, "step", None)


@contextlib.contextmanager
def entered(step: Step):
    """Make `step` the current one."""
    previous = current()
    _local.step = step
    try:
        yield step
    finally:
        _local.step = previous


def in_graph_of_step() -> bool:
    """Whether random numbers drawn now belong to the step itself, not to a layer that is built in it.

    Keras and TensorFlow create variables under init_scope, outside the graph of the step.
    """
    step = current()
    if step is None:
        return False
    import tensorflow as tf

    return step.graph is None or not tf.executing_eagerly()
