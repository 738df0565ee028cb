"""BatchNormalization of Keras 3 takes its statistics from `matexrun.inject.batchnorm`, where that is asked for."""

import tensorflow as tf

from matexrun.inject import batchnorm, patching, step


def patch() -> None:
    """Patch BatchNormalization._moments, which gives mean and variance in training (Keras 3.10 and 3.15)."""
    from keras.src.layers.normalization.batch_normalization import BatchNormalization

    batchnorm.expect()

    @patching.method(BatchNormalization, "_moments", ("inputs", "mask"))
    def moments(original, self, inputs, mask):
        if not batchnorm.synchronised(inputs):
            return original(self, inputs, mask)
        step.current().settles(self.non_trainable_variables)  # the moving statistics: the same on all ranks
        mask = None if mask is None else tf.expand_dims(mask, -1)
        return batchnorm.moments(inputs, self._reduction_axes, mask)
