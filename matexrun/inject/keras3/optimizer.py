"""Gradients that no tape has combined are combined where they are applied: before clipping, before loss scaling looks
at them, once per update."""

import threading

import tensorflow as tf

from matexrun.inject import gradients, patching, step

_local = threading.local()


def applying() -> bool:
    """Whether an optimizer is making an update."""
    return getattr(_local, "applying", False)


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
        return original(self, loss * tf.cast(current.weight, loss.dtype))

    @patching.overrides(BaseOptimizer, "apply")
    def apply(original, self, grads, trainable_variables=None, **kwargs):
        if applying():  # an inner optimizer, or super().apply()
            return original(self, grads, trainable_variables, **kwargs)
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        _local.applying = True
        try:
            return original(self, gradients.applied(self, grads, variables), trainable_variables, **kwargs)
        finally:
            _local.applying = False
