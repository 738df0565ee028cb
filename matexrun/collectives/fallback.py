"""The same collectives through tf.numpy_function: for TensorFlows without a known FFI API, and for shapes that vary.

Slower (TensorFlow copies results where memory isn't aligned) and impossible inside a jit cluster. Imported only after
TensorFlow.
"""

import numpy as np
import tensorflow as tf

from matexrun.collectives import world
from matexrun.collectives.calls import Call, count


def emit(call: Call, tensors: list[tf.Tensor], factor: tf.Tensor | None, token: tf.Tensor) -> list[tf.Tensor]:
    """The results of `call` and the token that follows it."""

    def run(*operands):
        sources = operands[: len(tensors)]
        results = [np.empty_like(source) for source in sources]  # operands are TensorFlow's memory: never written
        call.run(sources, results, float(operands[-2]) if factor is not None else 1.0)
        return [*results, operands[-1]]

    # Flat, since numpy_function can't convert a scalar of bfloat16 in eager mode.
    operands = [*(tf.reshape(tensor, [-1]) for tensor in tensors), *([] if factor is None else [factor]), token]
    *results, token = tf.numpy_function(run, operands, [*(tensor.dtype for tensor in tensors), tf.float32])
    token.set_shape([1])
    return [*(tf.reshape(result, shape) for result, shape in zip(results, call.shapes, strict=True)), token]


def gather_rows(tensor: tf.Tensor, token: tf.Tensor, kind: str) -> tuple[tf.Tensor, tf.Tensor]:
    """The rows of all ranks' tensors, and the token that follows."""

    def run(array, token):
        rows = world.gather_rows(world.current().data, array)
        count(kind, [rows])
        return rows, token

    rows, token = tf.numpy_function(run, [tensor, token], [tensor.dtype, tf.float32])
    rows.set_shape([None, *tensor.shape[1:]])
    token.set_shape([1])
    return rows, token
