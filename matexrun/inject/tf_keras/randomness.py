"""Dropout, noise and augmentation of tf_keras layers that have a generator of their own differ between ranks in a step.

Other layers use TensorFlow's stateful ops, whose seeds differ already (`inject.randomness`). Initial weights come from
generators of the stateless type, which are left alone.
"""

import tensorflow as tf

from matexrun.inject import lifecycle, patching, step
from matexrun.inject.randomness import STRIDE


def patch() -> None:
    """Patch the methods of backend.RandomGenerator that draw. In a step, numbers are drawn from seeds, for a generator
    that gave them out itself would move on by the shape of the slice, and so differently on each rank."""
    from tf_keras.src.backend import RandomGenerator

    def of_a_step(generator) -> bool:
        generator._maybe_init()
        return generator._generator is not None and step.in_graph_of_step()

    @patching.method(RandomGenerator, "make_seed_for_stateless_op", ())
    def make_seed(original, self):
        if not of_a_step(self):
            return original(self)
        return self._generator.make_seeds()[:, 0] + tf.constant([lifecycle.rank() * STRIDE, 0], tf.int64)

    for name, parameters in (
        ("random_normal", ("shape",)),
        ("random_uniform", ("shape",)),
        ("truncated_normal", ("shape",)),
        ("dropout", ("inputs", "rate")),
    ):

        @patching.method(RandomGenerator, name, parameters)
        def draw(original, self, *args, **kwargs):
            if not of_a_step(self):
                return original(self, *args, **kwargs)
            kind, self._rng_type = self._rng_type, RandomGenerator.RNG_STATELESS
            try:
                return original(self, *args, **kwargs)
            finally:
                self._rng_type = kind
