"""Which arguments of a function are the batch: the arrays that share the most common number of rows."""

import collections

import numpy as np
import tensorflow as tf

from matexrun.inject import slices


class Arguments:
    """The arguments of one call.  rows: n, or None where no argument has rows.  key: the same for calls that differ
    only in arrays and numbers, and so take the same way through the function's Python code."""

    def __init__(self, args, kwargs):
        self._structure = (args, kwargs)
        self._flat = tf.nest.flatten(self._structure)
        sizes = [_rows(leaf) for leaf in self._flat]
        found = collections.Counter(size for size in sizes if size is not None)
        self.rows = found.most_common(1)[0][0] if found else None
        self._batch = [i for i, size in enumerate(sizes) if size is not None and size == self.rows]
        self.key = tuple(_key(leaf) for leaf in self._flat)

    @property
    def whole(self) -> tuple:
        """(args, kwargs) as they were given."""
        return self._structure

    def slice(self, start: int, take: int) -> tuple:
        """(args, kwargs) with rows start .. start + take - 1 of the batch."""
        flat = list(self._flat)
        for i in self._batch:
            flat[i] = slices.cut(flat[i], start, take)
        return tf.nest.pack_sequence_as(self._structure, flat)


def _rows(leaf) -> int | None:
    if isinstance(leaf, tf.Variable) or hasattr(leaf, "handle"):
        return None  # a variable of TensorFlow's or Keras': a weight, whatever its shape
    if not isinstance(leaf, (np.ndarray, tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
        return None
    rows = slices.rows_of(leaf)
    return None if rows is None else int(rows)


def _key(leaf):
    if leaf is None or isinstance(leaf, (bool, str)):
        return leaf
    if isinstance(leaf, (int, float, np.ndarray, np.generic, tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
        return "number"
    return id(leaf)
