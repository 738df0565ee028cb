"""The step in progress: which part of the global batch this rank computes, for the patches that run inside a step.

A step exists while TensorFlow traces (or, eagerly, runs) a model's train_step or test_step, or a training function of
the user's, on a slice of a batch. Where every rank computes the whole batch, rank 0 alone has its rows, and the others
none: what counts is then computed once.
"""

import contextlib
import dataclasses
import threading
from typing import Any

from matexrun.collectives.ops import Order


@dataclasses.dataclass
class Step:
    """rows: n_r, rows of this rank's slice; total: n, rows of the whole batch (int32 scalar tensors or variables). A
    rank with no rows computes one borrowed row, which must not count. order: the token of all collectives of this step.

    eager: the step runs eagerly; otherwise it is being traced.  by_tape: gradients are combined where a tape gives them
    out, not where an optimizer applies them, because code of the user's may stand between the two.
    by_hand: the user has written the step, and calls losses in it.  drawn: it takes its batches from a dataset.
    valued: a loss of Keras' was computed in it, whose value is the whole batch's.
    as_sum: a scalar that is 1 where the loss is a sum over rows, so that gradients add up unweighted; None: a mean.
    combined: whether gradients were combined in this step.  taken: whether a tape gave them out in it.
    settled: ids of the handles of variables that this step leaves equal on all ranks: an optimizer's and what it
    updates, and metrics'.
    weighted: ids of optimizers that have weighted the loss by the share already.
    """

    rows: Any
    total: Any
    training: bool
    order: Order
    jit: bool
    eager: bool
    by_tape: bool = False
    by_hand: bool = False
    drawn: bool = False
    valued: bool = False
    as_sum: Any = None
    combined: bool = False
    taken: bool = False
    settled: set = dataclasses.field(default_factory=set)
    weighted: set = dataclasses.field(default_factory=set)

    @property
    def share(self):
        """n_r / n (float32 scalar): the weight of this rank's slice in the batch."""
        import tensorflow as tf

        return tf.cast(self.rows, tf.float32) / tf.cast(tf.maximum(self.total, 1), tf.float32)

    @property
    def weight(self):
        """What this rank's gradients are multiplied by before they are summed over the ranks (float32 scalar)."""
        import tensorflow as tf

        if self.as_sum is None:
            return self.share
        return tf.where(self.as_sum > 0, tf.cast(self.counts, tf.float32), self.share)

    @property
    def scale(self):
        """n / n_r (float32 scalar): makes the sum over a slice a mean-type value; of the borrowed row, n."""
        import tensorflow as tf

        return tf.cast(self.total, tf.float32) / tf.cast(tf.maximum(self.rows, 1), tf.float32)

    @property
    def counts(self):
        """Whether this rank has rows of its own (bool scalar)."""
        return self.rows > 0

    def is_on(self, tensors) -> bool:
        """Whether these tensors can be of the step's rows. In an eager loop the script may compute other things as
        well, like losses of a validation set, which every rank does alone."""
        if self is not surrounding():
            return True
        took = max(int(self.rows), 1)
        return all(tensor.shape[0] == took for tensor in tensors if len(getattr(tensor, "shape", ())))

    def settles(self, variables) -> None:
        """Note that the step leaves these variables equal on all ranks."""
        self.settled.update(id(variable.handle) for variable in variables)


_local = threading.local()


def current() -> Step | None:
    """The step that is being traced or run in this thread."""
    return getattr(_local, "step", None) or surrounding()


def surrounding() -> Step | None:
    """The step that no function encloses: an eager loop's, from one batch to the next."""
    return getattr(_local, "surrounding", None)


def surround(step: Step | None) -> None:
    """Make `step` the one for code that no function encloses."""
    _local.surrounding = step


@contextlib.contextmanager
def entered(step: Step):
    """Make `step` the current one."""
    previous = getattr(_local, "step", None)
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

    return step.eager or not tf.executing_eagerly()
