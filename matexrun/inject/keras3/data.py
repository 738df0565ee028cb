"""Splitting batches: every rank computes a contiguous slice of each batch, and each row is computed exactly once.

Elements become `(data, (n_r, n))`: this rank's slice, its number of rows, and the batch's. With fewer rows than ranks
the last ranks get one borrowed row and n_r = 0, because layers do not survive an empty slice.

Arrays are sliced by index before the rows are gathered, so the work per rank does not grow with the number of ranks;
datasets, generators and PyDatasets yield whole batches, which are sliced after.
"""

import contextlib
import functools

import tensorflow as tf

from matexrun.errors import PatchError
from matexrun.inject import lifecycle, patching, randomness

_as_written = tf.autograph.experimental.do_not_convert

# Epochs of unseeded array data need a fresh order each, the same on all ranks: one seed per data adapter of the job.
_shuffles = 0


def bounds(total, rank: int, size: int):
    """(start, rows) of `rank`'s slice of `total` rows; works on Python ints and on integer tensors alike.

    Slices are contiguous and differ by at most one row, longer ones first.
    """
    base, rest = total // size, total % size
    if isinstance(total, int):
        return rank * base + min(rank, rest), base + (rank < rest)
    rank = tf.constant(rank, total.dtype)
    return rank * base + tf.minimum(rank, rest), base + tf.cast(rank < rest, total.dtype)


def _mine(total):
    """(start, rows to take, n_r) of this rank; a rank without rows borrows the first."""
    start, rows = bounds(total, lifecycle.rank(), lifecycle.job().size)
    if isinstance(total, int):
        return (start, rows, rows) if rows or not total else (0, 1, 0)
    start = tf.where(rows > 0, start, 0)
    return start, tf.where(rows > 0, rows, tf.minimum(total, 1)), rows


def split(data):
    """`(slice, (n_r, n))` of one batch: any structure of arrays, tensors, ragged and sparse tensors; None and Optional
    leaves stay. Raises ValueError where there is nothing to split. n_r and n are int32 scalars."""
    leaves = [leaf for leaf in _leaves(data) if _rows(leaf) is not None]
    if not leaves:
        raise ValueError("matexrun cannot split a batch that has no array with a first (batch) dimension")
    total = _rows(leaves[0])
    start, take, rows = _mine(total)
    checked = [] if isinstance(total, int) else [_same(total, leaf) for leaf in leaves[1:]]
    with tf.control_dependencies(checked) if checked else contextlib.nullcontext():
        sliced = _map(lambda leaf: leaf if _rows(leaf) is None else _slice(leaf, start, take), data)
    return sliced, (tf.cast(rows, tf.int32), tf.cast(total, tf.int32))


def _map(fn, data):
    """tf.nest over what Keras' data adapters yield; None stays None."""
    return tf.nest.map_structure(lambda leaf: None if leaf is None else fn(leaf), data)


def _leaves(data):
    return [leaf for leaf in tf.nest.flatten(data) if leaf is not None]


def _rows(leaf):
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
        tf.cast(_rows(leaf), tf.int64),
        tf.cast(total, tf.int64),
        message="matexrun splits a batch along the first dimension, and the parts of this one differ in it",
    )


def _slice(leaf, start, take):
    if isinstance(leaf, tf.SparseTensor):
        begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(leaf.dense_shape[1:])], 0)
        extent = tf.concat([[tf.cast(take, tf.int64)], leaf.dense_shape[1:]], 0)
        return tf.sparse.slice(leaf, begin, extent)
    return leaf[start : start + take]


def split_dataset(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset of this rank's slices; order is made deterministic, because all ranks must see the same batches."""
    single = not isinstance(dataset.element_spec, tuple)

    @_as_written
    def one(*element):
        return split(element[0] if single else element)

    options = tf.data.Options()
    options.deterministic = True
    return dataset.map(one).with_options(options)


def _split_indices(adapter, indices: tf.data.Dataset) -> tf.data.Dataset:
    """Batches of row numbers -> this rank's part of each; in an order of our own where the user has set no seed.

    With a seed, Keras' own permutation is what the sequential run has. Without one, TensorFlow would shuffle
    differently on each rank, and with a seed of ours in the same way in every epoch.
    """
    if adapter._shuffle and not randomness.global_seed_is_set():
        indices = _shuffled_indices(adapter._num_samples, adapter._batch_size, adapter._shuffle == "batch")

    @_as_written
    def mine(batch):
        start, take, _ = _mine(tf.shape(batch, out_type=tf.int64)[0])
        return batch[start : start + take]

    return indices.map(mine)


def _shuffled_indices(samples: int, batch_size: int, within_batches: bool) -> tf.data.Dataset:
    global _shuffles
    _shuffles += 1
    seeds = tf.data.Dataset.random(seed=lifecycle.job().seed + _shuffles, rerandomize_each_iteration=True)

    @_as_written
    def epoch(seed):
        order = tf.range(samples, dtype=tf.int64)
        if not within_batches:
            order = tf.random.experimental.stateless_shuffle(order, seed)

        @_as_written
        def batch(number):
            rows = order[number * batch_size : (number + 1) * batch_size]
            if within_batches:
                rows = tf.random.experimental.stateless_shuffle(rows, seed + tf.stack([number, 0]))
            return rows

        return tf.data.Dataset.range(-(-samples // batch_size)).map(batch)

    return seeds.batch(2).take(1).flat_map(epoch)


def _array_dataset(original, adapter) -> tf.data.Dataset:
    """ArrayDataAdapter's dataset with the split between the row numbers and the gather.

    Keras zips the batches of row numbers with the arrays; that public call, Dataset.zip, is where we step in.
    """
    zipped = []

    def zip_(datasets, *args, **kwargs):
        indices, inputs = datasets
        if indices.element_spec != tf.TensorSpec([None], tf.int64) and indices.element_spec.dtype != tf.int64:
            raise PatchError(f"Keras' array data: expected row numbers, found {indices.element_spec}")
        zipped.append(True)
        return plain_zip((_split_indices(adapter, indices), inputs), *args, **kwargs)

    plain_zip = tf.data.Dataset.zip
    tf.data.Dataset.zip = zip_
    try:
        dataset = original(adapter)
    finally:
        tf.data.Dataset.zip = staticmethod(plain_zip)
    if zipped != [True]:
        raise PatchError(f"Keras' array data is not built by one Dataset.zip any more; tried on {patching.KERAS_TRIED}")
    sizes = [adapter._batch_size] * (adapter._num_samples // adapter._batch_size)
    sizes += [adapter._num_samples % adapter._batch_size] * (adapter._num_samples % adapter._batch_size > 0)
    rows = tf.data.Dataset.from_tensor_slices(([_mine(n)[2] for n in sizes], sizes))
    return tf.data.Dataset.zip((dataset, rows))


def patch() -> None:
    """Patch TFEpochIterator.__init__, through which all data of fit, evaluate and predict passes."""
    from keras.src.backend.tensorflow.trainer import TFEpochIterator
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    @patching.method(TFEpochIterator, "__init__", ("distribute_strategy",))
    def epoch_iterator(original, self, *args, **kwargs):
        with _splitting_arrays(ArrayDataAdapter):
            original(self, *args, **kwargs)
        if not isinstance(self.data_adapter, ArrayDataAdapter):
            self._distributed_dataset = split_dataset(self._distributed_dataset)


@contextlib.contextmanager
def _splitting_arrays(adapter):
    original = adapter.get_tf_dataset
    adapter.get_tf_dataset = functools.wraps(original)(lambda self: _array_dataset(original, self))
    try:
        yield
    finally:
        adapter.get_tf_dataset = original
