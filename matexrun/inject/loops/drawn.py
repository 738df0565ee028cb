"""Training functions that take batches from a dataset by themselves: `for x, y in dataset` and `next(iterator)` in a
tf.function.

Each batch is sliced in the graph, as soon as it is drawn. Such a function cannot be tried on parts of a batch, because
what it has drawn cannot be put back: its losses are taken for means over rows, or are losses of Keras', which are made
right wherever they stand.
"""

import functools

import numpy as np
import tensorflow as tf

from matexrun.collectives import ops
from matexrun.errors import InexactError, PatchError
from matexrun.inject import lifecycle, patching, slices, step
from matexrun.inject.loops import eager, parts
from matexrun.inject.loops.counts import counts
from matexrun.inject.tensorflow import warn


def patch() -> None:
    """Patch AutoGraph's `for` over a dataset, and OwnedIterator's next element (TF 2.18 to 2.21)."""
    from tensorflow.python.autograph.operators import control_flow
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    registry = getattr(control_flow.for_loop_registry, "_registry", {})
    dataset = next((cls for cls in registry if issubclass(tf.data.Dataset, cls)), None)
    if dataset is None:
        raise PatchError(
            "AutoGraph has no `for` over tf.data.Dataset in its registry; tried on TensorFlow 2.18 to 2.21"
        )
    patching.check_signature(registry[dataset], ("ds", "extra_test", "body"))
    registry[dataset] = _loop(registry[dataset])

    @patching.method(OwnedIterator, "_next_internal", ())
    def next_element(original, self):
        if not tf.executing_eagerly():
            return _slice(original(self))
        try:
            return eager.taken(self, original(self))
        except tf.errors.OutOfRangeError:
            eager.ended(self)
            raise


def _loop(original):
    @functools.wraps(original)
    def for_dataset(ds, extra_test, body, *rest):
        return original(ds, extra_test, lambda element: body(_slice(element)), *rest)

    return for_dataset


def _slice(element):
    """This rank's part of an element, which becomes the batch of the current step."""
    current = step.current()
    if current is None or not current.by_hand:
        return element
    if all(slices.rows_of(leaf) is None for leaf in tf.nest.flatten(element)):
        return element
    element, numbers = slices.split(element, _chosen)
    counts().draw(*numbers)
    current.drawn = True
    return element


def _chosen(total):
    """(start, rows to take, n_r): this rank's, or all while whole batches are computed, which then count on rank 0."""
    total = tf.cast(total, tf.int64)
    whole = tf.zeros_like(total), total, total if lifecycle.rank() == 0 else tf.zeros_like(total)
    return tuple(tf.where(counts().split, mine, all_) for mine, all_ in zip(slices.mine(total), whole, strict=True))


def run(boundary, call):
    """Call a function that trains on what it draws; its results are put together as means, or sums of integers."""
    counts().split.assign(True)
    try:
        result = call()
    finally:
        counts().split.assign(False)
    return tf.nest.map_structure(lambda value: _together(boundary, value), result)


def _together(boundary, value):
    if not parts.is_number(value):
        return value
    theirs = lifecycle.world().allgather_object(parts.as_array(value))
    if len({array.shape for array in theirs}) > 1:
        raise InexactError(
            f"{boundary.name} returns an array whose shape depends on the rows of a rank ({theirs[0].shape} on rank "
            "0); take the batch as an argument of the function instead of drawing it from a dataset in it"
        )
    if all(np.array_equal(array, theirs[0], equal_nan=True) for array in theirs):
        return value
    if not value.dtype.is_floating:
        return ops.allreduce([value], ops.Order())[0]
    warn(
        f"{boundary.name} draws its batches from a dataset and returns a number that differs between the ranks: it is "
        "taken for a mean over rows. A loss of keras.losses, or the batch as an argument, gives the exact value"
    )
    return ops.allreduce([value], ops.Order(), factor=tf.constant(1.0 / lifecycle.job().size))[0]
