"""Gradients that no tape has combined are combined where a tf_keras optimizer applies them: before clipping, before
loss scaling looks at them, once per update. Current and legacy optimizers."""

import threading

import tensorflow as tf

from matexrun.inject import gradients, patching, step

_local = threading.local()


def patch() -> None:
    """Patch `apply_gradients` of every optimizer class, which minimize() calls, and `get_scaled_loss` of the loss scale
    optimizers, whose own apply_gradients decides whether the gradients are finite."""
    from tf_keras.src.mixed_precision import loss_scale_optimizer
    from tf_keras.src.optimizers.legacy.optimizer_v2 import OptimizerV2
    from tf_keras.src.optimizers.optimizer import _BaseOptimizer

    for scaled in (loss_scale_optimizer.LossScaleOptimizer, loss_scale_optimizer.LossScaleOptimizerV3):
        patching.method(scaled, "get_scaled_loss", ("loss",))(_get_scaled_loss)
    for base in (_BaseOptimizer, OptimizerV2):
        patching.overrides(base, "apply_gradients")(_apply_gradients)


def _get_scaled_loss(original, self, loss):
    """Weight the loss by n_r/n before back-propagation: in float16 a gradient of a slice's own mean would overflow
    where the same rows of the whole batch's mean do not."""
    current = step.current()
    if current is None:
        return original(self, loss)
    current.weighted.add(id(self))

    def weighted(value):
        return value * tf.cast(current.weight, value.dtype)

    return original(self, (lambda: weighted(loss())) if callable(loss) else weighted(loss))


def _apply_gradients(original, self, grads_and_vars, *args, **kwargs):
    pairs = list(grads_and_vars)
    if getattr(_local, "applying", False) or not pairs:  # an inner optimizer, or super().apply_gradients()
        return original(self, pairs, *args, **kwargs)
    grads, variables = zip(*pairs, strict=True)
    _local.applying = True
    try:
        combined = gradients.applied(self, list(grads), list(variables))
        return original(self, list(zip(combined, variables, strict=True)), *args, **kwargs)
    finally:
        _local.applying = False
