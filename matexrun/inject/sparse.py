"""Gradients that consist of slices: a few rows of a large table, as those of an Embedding (tf.IndexedSlices).

They are combined in one of two ways (--sparse): every rank gets the rows of all ranks, or each makes them a whole
table, which is reduced like any other gradient, and also under jit_compile. An optimizer may tell the two apart: where
a row comes twice, Keras' Adam squares each part by itself, and clipping by norm takes the norm of the parts.
"""

import weakref

import numpy as np
import tensorflow as tf

from matexrun.errors import ContractError, InexactError
from matexrun.inject import lifecycle, step
from matexrun.inject.tensorflow import warn

_MIB = 1 << 20
_same: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()  # optimizer -> whether it does the same with both
_trying = False


def trying() -> bool:
    """Whether an optimizer is being tried, with gradients that are nobody's."""
    return _trying


def dense(grad: tf.IndexedSlices, variable, optimizer, current: step.Step):
    """The gradient as one of the variable's shape, if that is how it is to be combined, else None.

    optimizer: the one that will apply it, or None where that is not known.  The answer is the same on all ranks.
    Raises InexactError where the user asks for what gives another result, and ContractError for a step under
    jit_compile in which gradients can't be dense.
    """
    way = lifecycle.job().sparse
    if way == "dense":
        _check_dense(optimizer)
    elif way == "gather" or not does_the_same(optimizer) or not (current.jit or _is_small(variable)):
        if current.jit:
            raise ContractError(
                f"the gradient of {variable.name!r} consists of slices, which XLA cannot gather from the other ranks: "
                "compile with jit_compile=False"
            )
        return None
    values = tf.math.unsorted_segment_sum(grad.values, grad.indices, variable.shape[0])
    return tf.ensure_shape(values, variable.shape)


def compilable(optimizer) -> bool:
    """Whether the gradients of an Embedding can be combined under jit_compile."""
    way = lifecycle.job().sparse
    return way == "dense" or (way == "auto" and does_the_same(optimizer))


def _is_small(variable) -> bool:
    """Whether the table is reduced together with other gradients, in one call, where gathering takes two."""
    size = tf.TensorShape(variable.shape).num_elements() * tf.as_dtype(variable.dtype).size
    return size <= lifecycle.job().bucket_mb * _MIB


def _check_dense(optimizer) -> None:
    if optimizer is None:
        warn(
            "--sparse dense: gradients of slices are made dense where a tape gives them out; whether the optimizer "
            "makes the same update of them is not known"
        )
    elif not does_the_same(optimizer):
        problem = (
            f"--sparse dense: the optimizer {optimizer.name!r} makes another update of a dense gradient than of "
            "slices; use --sparse auto or gather"
        )
        if lifecycle.job().inexact == "error":
            raise InexactError(problem + " (--inexact warn trains all the same)")
        warn(problem)


def does_the_same(optimizer) -> bool:
    """Whether an optimizer of Keras or tf_keras makes the same updates of a gradient in slices and of a dense one: a
    copy of it is tried on a small table. False where it can't be copied, and for None."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if optimizer is None:
        return False
    if optimizer not in _same:
        with tf.init_scope():
            _same[optimizer] = _try(optimizer)
    return _same[optimizer]


def _try(optimizer) -> bool:
    global _trying
    _trying = True
    try:
        changes = [_updated(optimizer, make) - _START for make in (lambda grad: grad, tf.convert_to_tensor)]
    except Exception:  # whatever a user's optimizer makes of its own configuration
        return False
    finally:
        _trying = False
    largest = np.abs(changes).max()
    return bool(largest > 0 and np.abs(changes[0] - changes[1]).max() < 1e-3 * largest)


_START = np.linspace(-0.01, 0.01, 8, dtype=np.float32).reshape(4, 2)


def _updated(optimizer, make) -> np.ndarray:
    """_START after some updates with gradients of which rows come twice, once, or not at all, and so large that they
    are clipped where the optimizer does that."""
    copy = type(optimizer).from_config(optimizer.get_config())
    table = tf.Variable(_START)
    for update in range(2 * (getattr(optimizer, "gradient_accumulation_steps", None) or 1)):
        values = tf.constant([[3e4, 1e4], [-1e4, 2e4], [2e4, 5e4]])
        grad = make(tf.IndexedSlices(values, tf.constant([0, 0, 1 + update % 2]), tf.constant([4, 2])))
        copy.apply_gradients([(grad, table)])
    return table.numpy()
