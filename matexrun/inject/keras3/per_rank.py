"""--batch per-rank: fit of Keras trains on batches that are as many times larger as there are ranks.

Arrays are batched with a larger size; of datasets, generators and PyDatasets, as many batches as there are ranks are
joined into one. The last one may be smaller, and no row is left out. What is evaluated or predicted stays as it is.
"""

import itertools
import threading
import types

import numpy as np
import tensorflow as tf

from matexrun.errors import UsageError
from matexrun.inject import lifecycle, patching

_DEFAULT_BATCH_SIZE = 32  # fit's, for arrays
_local = threading.local()


def patch() -> None:
    """Patch fit and TFEpochIterator.__init__, whose first call in fit is for the data to train on (Keras 3.10 and
    3.15). After `data.patch`, which splits the batches."""
    if lifecycle.job().batch != "per-rank":
        return
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator

    @patching.method(TensorFlowTrainer, "fit", ("x", "y"))
    def fit(original, self, *args, **kwargs):
        _local.training = True
        try:
            return original(self, *args, **kwargs)
        finally:
            _local.training = False

    @patching.method(TFEpochIterator, "__init__", ("distribute_strategy",))
    def epoch_iterator(original, self, *args, **kwargs):
        if getattr(_local, "training", False):
            _local.training = False
            kwargs = _enlarged(lifecycle.job().size, **kwargs)
        original(self, *args, **kwargs)


def _enlarged(times: int, x, y=None, sample_weight=None, batch_size=None, steps_per_epoch=None, **others) -> dict:
    """The arguments of TFEpochIterator for batches of so many times as many rows. Raises UsageError."""
    from keras.src.trainers.data_adapters.array_data_adapter import can_convert_arrays
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDataset

    if can_convert_arrays((x, y, sample_weight)):
        if batch_size or not steps_per_epoch:  # else the number of steps decides on the size
            batch_size = times * (batch_size or _DEFAULT_BATCH_SIZE)
    elif isinstance(x, tf.data.Dataset):
        x = _join_dataset(x, times)
    elif isinstance(x, PyDataset):
        x = _joined_class(PyDataset)(x, times)
    elif isinstance(x, types.GeneratorType):
        x = _join_batches(x, times)
    else:
        raise UsageError(
            f"--batch per-rank cannot join batches of a {type(x).__name__}: give fit arrays, a tf.data.Dataset, a "
            "PyDataset or a generator, or set the batch size in the script and use --batch global"
        )
    return {
        **others,
        **{"x": x, "y": y, "sample_weight": sample_weight},
        **{"batch_size": batch_size, "steps_per_epoch": steps_per_epoch},
    }


def _join_dataset(dataset: tf.data.Dataset, times: int) -> tf.data.Dataset:
    specs = tf.nest.flatten(dataset.element_spec)
    if not all(isinstance(spec, tf.TensorSpec) for spec in specs):
        raise UsageError(
            "--batch per-rank cannot join batches of ragged or sparse tensors: set the batch size in the script and "
            "use --batch global"
        )
    single = not isinstance(dataset.element_spec, tuple)

    def join(*parts):
        rows = tf.data.Dataset.zip(parts[0] if single else parts).unbatch()
        return rows.batch(np.iinfo(np.int64).max)

    joined = dataset.window(times).flat_map(join)
    count = int(dataset.cardinality())
    if count == tf.data.UNKNOWN_CARDINALITY:
        return joined
    return joined.apply(tf.data.experimental.assert_cardinality(-(-count // times) if count >= 0 else count))


def _join_batches(batches, times: int):
    while parts := list(itertools.islice(batches, times)):
        yield _concatenated(parts)


def _concatenated(parts: list):
    from keras import tree

    def join(*leaves):
        if leaves[0] is None:
            return None
        if not all(hasattr(leaf, "__array__") for leaf in leaves):
            raise UsageError(f"--batch per-rank cannot join batches of {type(leaves[0]).__name__}: yield arrays")
        return np.concatenate([np.asarray(leaf) for leaf in leaves])

    return parts[0] if len(parts) == 1 else tree.map_structure(join, *parts)


def _joined_class(PyDataset):
    class Joined(PyDataset):
        """So many batches of another PyDataset as one."""

        def __init__(self, dataset, times):
            super().__init__(dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size)
            self._dataset, self._times = dataset, times

        @property
        def num_batches(self):
            count = self._dataset.num_batches
            return None if count is None else -(-count // self._times)

        def __getitem__(self, index):
            first, count = index * self._times, self._dataset.num_batches
            last = first + self._times if count is None else min(first + self._times, count)
            return _concatenated([self._dataset[i] for i in range(first, last)])

        def on_epoch_begin(self):
            self._dataset.on_epoch_begin()

        def on_epoch_end(self):
            self._dataset.on_epoch_end()

    return Joined
