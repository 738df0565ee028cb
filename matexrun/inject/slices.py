"""Slices of batches: every rank computes a contiguous part of each, and each row is computed exactly once.

With fewer rows than ranks the last ranks get one borrowed row and n_r = 0, because layers do not survive an empty
slice. Works on any structure of arrays, tensors, ragged and sparse tensors, eagerly and in graphs. No communication
here.
"""

import contextlib
import itertools

import tensorflow as tf

from matexrun.inject import lifecycle


def bounds(total, rank: int, size: int):
    """(start, rows) of `rank`'s slice of `total` rows; works on Python ints and on integer tensors alike.

    Slices are contiguous and differ by at most one row, longer ones first.
    """
    base, rest = total // size, total % size
    if isinstance(total, int):
        return rank * base + min(rank, rest), base + (rank < rest)
    rank = tf.constant(rank, total.dtype)
    return rank * base + tf.minimum(rank, rest), base + tf.cast(rank < rest, total.dtype)


def mine(total):
    """(start, rows to take, n_r) of this rank in `total` rows; a rank without rows borrows the first."""
    start, rows = bounds(total, lifecycle.rank(), lifecycle.job().size)
    if isinstance(total, int):
        return (start, rows, rows) if rows or not total else (0, 1, 0)
    start = tf.where(rows > 0, start, 0)
    return start, tf.where(rows > 0, rows, tf.minimum(total, 1)), rows


def split(data, choose=mine):
    """`(slice, (n_r, n))` of one batch: any structure of arrays, tensors, ragged and sparse tensors; None and Optional
    leaves stay. Raises ValueError where there is nothing to split. n_r and n are int32 scalars.

    choose: what gives (start, rows to take, n_r) for n rows."""
    leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None and rows_of(leaf) is not None]
    if not leaves:
        raise ValueError("matexrun cannot split a batch that has no array with a first (batch) dimension")
    total = rows_of(leaves[0])
    start, take, rows = choose(total)
    checked = [] if isinstance(total, int) else [_same(total, leaf) for leaf in leaves[1:]]
    with tf.control_dependencies(checked) if checked else contextlib.nullcontext():
        sliced = _map(lambda leaf: leaf if rows_of(leaf) is None else cut(leaf, start, take), data)
    return sliced, (tf.cast(rows, tf.int32), tf.cast(total, tf.int32))


def _map(fn, data):
    """tf.nest over what Keras' data adapters yield; None stays None."""
    return tf.nest.map_structure(lambda leaf: None if leaf is None else fn(leaf), data)


def rows_of(leaf):
    """The number of rows: a Python int where it is known, else an int64 tensor; None for what has no rows."""
    if isinstance(leaf, tf.SparseTensor):
        static = leaf.shape[0] if leaf.shape.rank else None
        return static if static is not None and not tf.inside_function() else leaf.dense_shape[0]
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    shape = getattr(leaf, "shape", None)
    if shape is None or len(shape) == 0:
        return None
    if shape[0] is not None:
        return int(shape[0])
    return tf.shape(leaf, out_type=tf.int64)[0]


def _same(total, leaf):
    return tf.debugging.assert_equal(
        tf.cast(rows_of(leaf), tf.int64),
        tf.cast(total, tf.int64),
        message="matexrun splits a batch along the first dimension, and the parts of this one differ in it",
    )


def cut(leaf, start, take):
    """Rows start .. start + take - 1 of an array or tensor of any kind."""
    if isinstance(leaf, tf.SparseTensor):
        begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(leaf.dense_shape[1:])], 0)
        extent = tf.concat([[tf.cast(take, tf.int64)], leaf.dense_shape[1:]], 0)
        return tf.sparse.slice(leaf, begin, extent)
    return leaf[start : start + take]


def put_back(first, iterator, steps: int):
    """An iterator over `first` and then `iterator`, for one execution of `steps` steps.

    As a tf.data iterator of the same type, so that TensorFlow does not trace the step twice.
    """
    elements = itertools.islice(itertools.chain([first], iterator), steps)
    if isinstance(iterator, tf.data.Iterator) and not _has_optionals(iterator.element_spec):
        dataset = tf.data.Dataset.from_generator(lambda: elements, output_signature=iterator.element_spec)
        return iter(dataset)
    return elements


def _has_optionals(spec) -> bool:
    return any(isinstance(leaf, tf.OptionalSpec) for leaf in tf.nest.flatten(spec))
