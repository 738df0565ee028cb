"""Random numbers that are drawn for the rows of a batch: each rank gets its rows' part of what one process would draw.

Dropout, noise and the like ask for random numbers in the shape of a batch. Every rank draws those of the whole batch,
which keeps the generators of all ranks in step, and takes the part of its slice: the same numbers as without ranks, and
other ones on each of them.
"""

import functools
import inspect

import tensorflow as tf

from matexrun.errors import PatchError
from matexrun.inject.v1 import graphs

_DRAWS = ("random_uniform", "random_uniform_int", "random_standard_normal", "truncated_normal")


def patch() -> None:
    """Patch the functions of gen_random_ops that draw numbers in a given shape (TF 2.18 to 2.21)."""
    from tensorflow.python.ops import gen_random_ops

    for name in _DRAWS:
        original = getattr(gen_random_ops, name, None)
        if original is None or next(iter(inspect.signature(original).parameters)) != "shape":
            raise PatchError(f"gen_random_ops.{name}(shape, ...) was expected; tried on TF 2.18 to 2.21")
        setattr(gen_random_ops, name, _of_slices(original))


def _of_slices(original):
    @functools.wraps(original)
    def draw(shape, *args, **kwargs):
        if not graphs.building() or not isinstance(shape, tf.Tensor) or not graphs.depends_on_rows(shape.op):
            return original(shape, *args, **kwargs)
        return _drawn(graphs.state(), lambda grown: original(grown, *args, **kwargs), shape)

    return draw


def _drawn(state, original, shape):
    from tensorflow.python.framework import tensor_util

    static = tensor_util.constant_value_as_shape(shape)
    unknown = [] if static.rank is None else [i for i, size in enumerate(static.as_list()) if size is None]
    axis = unknown[0] if unknown else 0
    with state.ours():
        rows = state.rows([shape.op])
        size = tf.cast(shape[axis], tf.int64)
        each = tf.where(tf.equal(size % tf.maximum(rows.take, 1), 0), size // tf.maximum(rows.take, 1), 0)
        whole = tf.where(each > 0, each * rows.total, size)
        grown = tf.concat([shape[:axis], [tf.cast(whole, shape.dtype)], shape[axis + 1 :]], 0)
    numbers = original(grown)
    with state.ours():
        indices = tf.range(size) + each * rows.start
        return tf.ensure_shape(tf.gather(numbers, indices, axis=axis), static)
