"""Splitting batches: every rank computes a contiguous slice of each batch, and each row is computed exactly once.

Elements become `(data, (n_r, n))`: this rank's slice, its number of rows, and the batch's. With fewer rows than ranks
the last ranks get one borrowed row and n_r = 0, because layers do not survive an empty slice.

Arrays are sliced by index before the rows are gathered, so the work per rank does not grow with the number of ranks;
datasets, generators and PyDatasets yield whole batches, which are sliced after; datasets earlier where `pipelines` can.
"""

import contextlib
import functools

import tensorflow as tf

from matexrun.errors import PatchError
from matexrun.inject import lifecycle, patching, pipelines, randomness, slices

_as_written = tf.autograph.experimental.do_not_convert

# Epochs of unseeded array data need a fresh order each, the same on all ranks: one seed per data adapter of the job.
_shuffles = 0


def split_dataset(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset of this rank's slices; order is made deterministic, because all ranks must see the same batches."""
    single = not isinstance(dataset.element_spec, tuple)

    @_as_written
    def one(*element):
        return slices.split(element[0] if single else element)

    options = tf.data.Options()
    options.deterministic = True
    return pipelines.split_early(dataset, dataset.map(one)).with_options(options)


def _split_indices(adapter, indices: tf.data.Dataset) -> tf.data.Dataset:
    """Batches of row numbers -> this rank's part of each; in an order of our own where the user has set no seed.

    With a seed, Keras' own permutation is what the sequential run has. Without one, TensorFlow would shuffle
    differently on each rank, and with a seed of ours in the same way in every epoch.
    """
    if adapter._shuffle and not randomness.global_seed_is_set():
        indices = _shuffled_indices(adapter._num_samples, adapter._batch_size, adapter._shuffle == "batch")

    @_as_written
    def mine(batch):
        start, take, _ = slices.mine(tf.shape(batch, out_type=tf.int64)[0])
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
    rows = tf.data.Dataset.from_tensor_slices(([slices.mine(n)[2] for n in sizes], sizes))
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
