"""BatchNormalization of tf_keras takes its statistics from `matexrun.inject.batchnorm`, where that is asked for."""

import tensorflow as tf

from matexrun.errors import UsageError
from matexrun.inject import batchnorm, patching, step


def patch() -> None:
    """Patch BatchNormalizationBase's _calculate_mean_and_var, and its fused way, which asks nobody for statistics and
    is left for the other one, whose results are the same (tf_keras 2.18 to 2.21)."""
    from tf_keras.src.layers.normalization.batch_normalization import BatchNormalizationBase

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
        self.fused = False
        try:
            return self.call(inputs, training=training)  # the fused way ignores masks
        finally:
            self.fused = True
