"""Random numbers: the same on all ranks where the sequential run has one stream (initial weights, shuffling, data), and
different ones inside a training step, where equal dropout masks on all ranks would be a statistical fault.

Without a seed of the user's, the job seed takes the place of the operating system's entropy.
"""

import functools
import importlib
import random
import threading

from matexrun.errors import PatchError

# Odd, so that rank * STRIDE visits all 32-bit numbers before it repeats.
STRIDE = 0x9E3779B1

_local = threading.local()


def seed_python(seed: int) -> None:
    """Seed Python's own generator, from which Keras draws its default seeds."""
    random.seed(seed)


def seed_numpy(numpy, seed: int) -> None:
    """Seed NumPy's global generator, and the generators that `default_rng()` would seed from the system's entropy."""
    importlib.import_module("numpy.random")  # NumPy loads it when asked, which it can't be in wandb's lazy module
    numpy.random.seed(seed & 0xFFFFFFFF)
    original = numpy.random.default_rng
    count = 0

    @functools.wraps(original)
    def default_rng(seed_=None):
        nonlocal count
        if seed_ is None:
            count += 1
            seed_ = [seed, count]
        return original(seed_)

    numpy.random.default_rng = default_rng


def patch_tensorflow(seed: int, rank: int, size: int) -> None:
    """Give TensorFlow's unseeded random ops seeds that are the same on all ranks, except inside a step.

    Patches tensorflow.python.framework.random_seed.get_seed(op_seed), through which all stateful random ops and tf.data
    take their seeds (TF 2.18 to 2.21).
    """
    from tensorflow.python.framework import random_seed

    from matexrun.inject import patching

    original = random_seed.get_seed
    patching.check_signature(original, ("op_seed",))
    count = 0

    @functools.wraps(original)
    def get_seed(op_seed):
        nonlocal count
        seeds = original(op_seed)
        if seeds == (None, None):
            count += 1
            seeds = (seed, count)
        if _of_a_step():
            # Not 0 for rank 0: in eager mode an operation with the same seeds outside of steps would go on where those
            # in steps have stopped, but on rank 0 alone.
            seeds = (seeds[0], (seeds[1] + (rank + 1) * STRIDE) % 2**31) if size > 1 else seeds
        return seeds

    random_seed.get_seed = get_seed


def patch_keras(rank: int) -> None:
    """Shift the seeds that Keras' own random ops (dropout, noise, augmentation) draw inside a step by the rank.

    Patches `draw_seed` where keras.src.backend.tensorflow.random and .image imported it, and the Variable of all
    backends, whose initial value is no part of a step that runs eagerly (Keras 3.10 and 3.15).
    """
    from keras.src.backend.common.variables import Variable
    from keras.src.backend.tensorflow import image as keras_image
    from keras.src.backend.tensorflow import random as keras_random

    from matexrun.inject import patching

    original = getattr(keras_random, "draw_seed", None)
    if original is None:
        raise PatchError("keras.src.backend.tensorflow.random has no draw_seed; tried with Keras 3.10 and 3.15")
    patching.check_signature(original, ("seed",))

    @functools.wraps(original)
    def draw_seed(seed):
        import tensorflow as tf

        drawn = original(seed)
        if not _of_a_step():
            return drawn
        shift = tf.constant([rank * STRIDE % 2**31, 0], dtype=tf.int64)
        return tf.cast((tf.cast(drawn, tf.int64) + shift) % 2**31, drawn.dtype)

    for module in (keras_random, keras_image):
        if getattr(module, "draw_seed", None) is original:
            module.draw_seed = draw_seed

    @patching.method(Variable, "__init__", ("initializer",))
    def create(original, self, *args, **kwargs):
        before, _local.creating = getattr(_local, "creating", False), True
        try:
            original(self, *args, **kwargs)
        finally:
            _local.creating = before


def _of_a_step() -> bool:
    """Whether random numbers that are drawn now must differ between ranks."""
    from matexrun.inject import step

    return step.in_graph_of_step() and not getattr(_local, "creating", False)


def global_seed_is_set() -> bool:
    """Whether the user has called tf.random.set_seed (or Keras' set_random_seed)."""
    from tensorflow.python.eager import context

    return context.global_seed() is not None
