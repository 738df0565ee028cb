"""Splitting the batches of tf_keras: elements become a Slice, which train_step, test_step and predict_step take apart.

Arrays are sliced by row number before the rows are gathered, so the work per rank does not grow with the number of
ranks; datasets, generators and Sequences yield whole batches, which are sliced after.
"""

import contextlib
import threading
from typing import Any, NamedTuple

import tensorflow as tf

from matexrun.inject import patching, slices
from matexrun.inject.keras3 import data as keras3
from matexrun.inject.tensorflow import warn

_as_written = tf.autograph.experimental.do_not_convert
_local = threading.local()


class Slice(NamedTuple):
    """data: this rank's rows of a batch, in the batch's structure; rows: n_r; total: n (int32 scalars)."""

    data: Any
    rows: Any
    total: Any


def patch() -> None:
    """Patch DataHandler, through which the data of fit, evaluate and predict passes (and that of adapt, which is not
    split), the array adapters' slice_inputs, and the iterator of train_on_batch and its kin."""
    from tf_keras.src.engine import data_adapter

    @patching.method(data_adapter.DataHandler, "__init__", ("x", "y"))
    def data_handler(original, self, *args, distribute=True, **kwargs):
        with _splitting(distribute):
            original(self, *args, distribute=distribute, **kwargs)
        if distribute:
            adapter = getattr(self._adapter, "_internal_adapter", self._adapter)
            by_number = isinstance(adapter, data_adapter.TensorLikeDataAdapter) and _by_number(adapter)
            self._dataset = _with_counts(self._dataset, adapter) if by_number else _split(self._dataset)

    for adapter in (data_adapter.TensorLikeDataAdapter, data_adapter.GenericArrayLikeDataAdapter):

        @patching.method(adapter, "slice_inputs", ("indices_dataset", "inputs"))
        def slice_inputs(original, self, indices_dataset, inputs):
            if getattr(_local, "splitting", False) and _by_number(self):
                indices_dataset = indices_dataset.map(_mine)
            return original(self, indices_dataset, inputs)

    @patching.method(data_adapter.GeneratorDataAdapter, "_handle_multiprocessing", ("x", "workers"))
    def one_worker(original, self, x, workers, use_multiprocessing, max_queue_size):
        """Several workers take turns in an order of their own on each rank, which must all see the same batches."""
        if workers > 1 or use_multiprocessing:
            warn("a generator is read by one worker, in order, whatever `workers` says; a Sequence can have several")
        return original(self, x, 1, False, max_queue_size)

    original = data_adapter.single_batch_iterator
    patching.check_signature(original, ("strategy", "x", "y", "sample_weight", "class_weight"))

    def single_batch_iterator(*args, **kwargs):
        batch, (rows, total) = slices.split(next(original(*args, **kwargs)))
        return iter(tf.data.Dataset.from_tensors(Slice(batch, rows, total)))

    patching.everywhere(original, single_batch_iterator, "tf_keras")


@contextlib.contextmanager
def _splitting(wanted: bool):
    before, _local.splitting = getattr(_local, "splitting", False), wanted
    try:
        yield
    finally:
        _local.splitting = before


def _by_number(adapter) -> bool:
    """Whether an array adapter's row numbers can be split. With shuffle="batch" the batches change places, so that
    nobody knows which is the short one."""
    return adapter._shuffle != "batch"


@_as_written
def _mine(indices):
    start, take, _ = slices.mine(tf.shape(indices, out_type=tf.int64)[0])
    return indices[start : start + take]


def _with_counts(dataset: tf.data.Dataset, adapter) -> tf.data.Dataset:
    """Slices of arrays, epoch after epoch in one dataset, and the numbers of rows, which are those of every epoch."""
    sizes = [adapter.batch_size()] * adapter.get_size()
    sizes[-1] = adapter.partial_batch_size() or sizes[-1]
    counts = tf.data.Dataset.from_tensor_slices(([slices.mine(n)[2] for n in sizes], sizes)).repeat()
    return tf.data.Dataset.zip((dataset, counts)).map(_as_slice)


def _split(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return keras3.split_dataset(dataset).map(_as_slice)


@_as_written
def _as_slice(batch, counts):
    return Slice(batch, *counts)
