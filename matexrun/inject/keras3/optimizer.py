"""Gradients are combined where they are applied: before clipping, before loss scaling looks at them, once per
update."""

import threading

import tensorflow as tf

from matexrun.collectives import ops
from matexrun.errors import ContractError
from matexrun.inject import lifecycle, patching, step
from matexrun.inject.tensorflow import warn

_local = threading.local()


def patch() -> None:
    """Patch `apply` of every optimizer class: LossScaleOptimizer, and subclasses of the user's, have their own. And
    `scale_loss` of LossScaleOptimizer."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    @patching.method(LossScaleOptimizer, "scale_loss", ("loss",))
    def scale_loss(original, self, loss):
        """Weight the loss by n_r/n before back-propagation: in float16 a gradient of a slice's own mean would overflow
        where the same rows of the whole batch's mean do not."""
        current = step.current()
        if current is None:
            return original(self, loss)
        current.weighted.add(id(self))
        return original(self, loss * tf.cast(current.share, loss.dtype))

    @patching.overrides(BaseOptimizer, "apply")
    def apply(original, self, grads, trainable_variables=None, **kwargs):
        if getattr(_local, "applying", False):  # an inner optimizer, or super().apply()
            return original(self, grads, trainable_variables, **kwargs)
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        _local.applying = True
        try:
            return original(self, combine(self, grads, variables), trainable_variables, **kwargs)
        finally:
            _local.applying = False


def combine(optimizer, grads: list, variables: list) -> list:
    """The gradients of the whole batch from those of the slices: sum over the ranks of n_r/n * g_r; None stays None.

    Outside a step of Keras' own every rank has computed the same batch, and the mean of equal gradients is combined.
    """
    current = step.current()
    if current is None:
        warn(
            "an optimizer is applied outside model.fit: batches of hand-written training loops are not split yet, so "
            "all ranks do the same work; the result is right, but no sooner"
        )
        order, share, jit = ops.Order(), tf.constant(1.0 / lifecycle.job().size), False
    else:
        order, jit = current.order, current.jit
        share = None if id(optimizer) in current.weighted else current.share
    result = list(grads)
    dense = []
    for i, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
        if isinstance(grad, tf.IndexedSlices):
            # Not made dense: Keras' Adam leaves rows without a gradient alone, momentum included.
            if jit:
                raise ContractError(
                    f"the gradient of {variable.path!r} consists of slices, which XLA cannot gather from the other "
                    "ranks: compile the model with jit_compile=False"
                )
            result[i] = ops.allgather_slices(grad, order, share)
            continue
        if result[i] is not None:
            # A gradient can have lost its shape (behind a masked RNN); the reduction needs it.
            result[i] = tf.ensure_shape(result[i], variable.shape)
            dense.append(i)
    summed = ops.allreduce([result[i] for i in dense], order, factor=share, kind="gradients")
    for i, reduced in zip(dense, summed, strict=True):
        result[i] = reduced
    return result
