"""BatchNormalization of tf_keras takes its statistics from `matexrun.inject.batchnorm`, where that is asked for."""

import tensorflow as tf

from matexrun.errors import UsageError
from matexrun.inject import batchnorm, patching, step


def patch() -> None:
    """Patch BatchNormalizationBase's _calculate_mean_and_var, and its fused way, which has statistics of its own
    (tf_keras 2.18 to 2.21)."""
    from tf_keras.src.layers.normalization.batch_normalization import BatchNormalizationBase

    batchnorm.expect()

    @patching.method(BatchNormalizationBase, "_calculate_mean_and_var", ("inputs", "reduction_axes", "keep_dims"))
    def mean_and_variance(original, self, inputs, reduction_axes, keep_dims, mask=None):
        if not batchnorm.synchronised(inputs):
            return original(self, inputs, reduction_axes, keep_dims, mask=mask)
        if self.virtual_batch_size is not None:
            raise UsageError(
                f"the layer {self.name!r} normalises parts of batches (virtual_batch_size), which --sync-batchnorm "
                "would undo: leave one of them out"
            )
        step.current().settles(self.non_trainable_variables)  # the moving statistics: the same on all ranks
        mask = None if mask is None else tf.expand_dims(mask, -1)
        return batchnorm.moments(inputs, reduction_axes, mask, keep_dims)

    @patching.method(BatchNormalizationBase, "_fused_batch_norm", ("inputs", "mask", "training"))
    def fused(original, self, inputs, mask, training):
        if (isinstance(training, (bool, int)) and not training) or not batchnorm.synchronised(inputs):
            return original(self, inputs, mask=mask, training=training)
        step.current().settles(self.non_trainable_variables)
        return _fused(self, inputs)


def _fused(layer, inputs):
    """What the fused way makes of a batch: without its mask, and with the moving variance estimated for all data
    (divided by n - 1), unlike that of the other way."""
    (axis,) = layer.axis
    axes = [i for i in range(inputs.shape.rank) if i != axis]
    mean, variance, entries = batchnorm.statistics(inputs, axes, keepdims=True)

    def along_axis(weights):
        return None if weights is None else tf.reshape(weights, mean.shape)

    wide = tf.cast(inputs, mean.dtype)
    beta, gamma = along_axis(layer.beta), along_axis(layer.gamma)
    output = tf.nn.batch_normalization(wide, mean, variance, beta, gamma, layer.epsilon)
    estimate = variance * entries / tf.maximum(entries - 1.0, 1.0)
    for moving, now in ((layer.moving_mean, mean), (layer.moving_variance, estimate)):
        now = tf.stop_gradient(tf.reshape(now, moving.shape))
        moving.assign(moving * layer.momentum + now * (1.0 - layer.momentum))
    return tf.cast(output, inputs.dtype)
