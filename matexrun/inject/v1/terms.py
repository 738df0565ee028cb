"""Losses as sums of terms: some depend on the rows of a batch, others (penalties on weights) do not.

A term over rows may be a sum or a mean; beside a sum, a penalty must be counted once, not once for each rank.
"""

import tensorflow as tf
from tensorflow.python.framework import tensor_util


def of(tensor, depends) -> list[tuple[tf.Tensor, float]]:
    """[(term, its constant factor)] whose sum `tensor` is; just itself where it is no scalar, or no sum.

    depends(op): whether the operation depends on rows. Terms that do not are not taken apart.
    """
    if tensor.shape.rank != 0 or not tensor.dtype.is_floating:
        return [(tensor, 1.0)]
    found, waiting = {}, [(tensor, 1.0)]
    while waiting:
        term, factor = waiting.pop()
        parts = _parts(term, depends)
        if parts is None:
            known = found.get(term.name, (term, 0.0))[1]
            found[term.name] = (term, known + factor)
        else:
            waiting += [(part, factor * more) for part, more in parts]
    return list(found.values())


def _parts(term, depends):
    """[(tensor, factor)] that `term` adds up, or None."""
    op = term.op
    if not depends(op) or any(tensor.shape.rank != 0 for tensor in op.inputs):
        return None
    if op.type in ("Add", "AddV2", "AddN", "Identity"):
        return [(tensor, 1.0) for tensor in op.inputs]
    if op.type == "Sub":
        return list(zip(op.inputs, (1.0, -1.0), strict=True))
    if op.type in ("Mul", "RealDiv"):
        left, right = op.inputs
        if op.type == "Mul" and depends(right.op):
            left, right = right, left
        constant = tensor_util.constant_value(right)
        if constant is not None and (op.type == "Mul" or constant):
            return [(left, float(constant) if op.type == "Mul" else 1.0 / float(constant))]
    return None
