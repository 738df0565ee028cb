"""From the slices to the whole batch: what a training function returns, and variables that it changes by itself.

Each value is of one kind, found in the trial:

    same    equal on all ranks already
    mean    the mean over the rows: sum(n_r/n * value_r), like a loss
    sum     the sum over the rows: sum(value_r), like a number of hits
    rows    one entry for each row
"""

import dataclasses

import numpy as np
import tensorflow as tf

from matexrun.collectives import ops
from matexrun.inject import lifecycle
from matexrun.inject.loops.counts import counts


@dataclasses.dataclass
class Plan:
    """outputs: kinds of the flat results, None where not known yet.  changes: [(variable, kind of its change)] of
    variables whose values would differ between ranks.  undecided: whether a trial with another batch is needed.
    trials: how many there were."""

    outputs: list
    changes: list
    undecided: bool
    trials: int

    def combine(self, call):
        """The results of the whole batch. `call()` computes this rank's slice."""
        before = [(v, v.read_value()) for v, _ in self.changes]
        result = call()
        flat = tf.nest.flatten(result)
        changed = [v.read_value() - old for v, old in before]
        values = combined([*flat, *changed], [*self.outputs, *(kind for _, kind in self.changes)])
        for (variable, old), change in zip(before, values[len(flat) :], strict=True):
            variable.assign(old + change)
        return tf.nest.pack_sequence_as(result, values[: len(flat)])


def combined(values: list, kinds: list) -> list:
    """Eager tensors of this rank's slice -> those of the whole batch, by kind. Collective."""
    values = list(values)
    for kind in ("mean", "sum"):
        chosen = [i for i, k in enumerate(kinds) if k == kind]
        for i, value in zip(chosen, summed([values[i] for i in chosen], kind), strict=True):
            values[i] = value
    for i, kind in enumerate(kinds):
        if kind == "rows":
            values[i] = gathered(values[i], counts().mine)
    return values


def summed(tensors: list, kind: str) -> list:
    """Tensors of the same shapes on all ranks, as "mean" or "sum" of the slices."""
    share = counts().share
    if kind == "mean":
        return ops.allreduce(tensors, ops.Order(), factor=tf.constant(share))
    # No factor: integers cannot be scaled.
    return ops.allreduce([t if share else tf.zeros_like(t) for t in tensors], ops.Order())


def gathered(tensor, rows: int):
    """The rows of all ranks, in the order of the batch; of this one, those of its `rows` rows."""
    array = tensor.numpy()
    per_row = len(array) // max(rows, 1)
    return tf.constant(lifecycle.world().allgather_rows(array[: rows * per_row]))


def is_number(value) -> bool:
    """Whether a result is a tensor of numbers, which ranks can put together."""
    return isinstance(value, tf.Tensor) and (value.dtype.is_floating or value.dtype.is_integer)


def as_array(value) -> np.ndarray:
    """In float64, where comparisons do not overflow."""
    return tf.cast(value, tf.float64).numpy()
