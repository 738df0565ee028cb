"""Random numbers that TensorFlow's own functions draw inside a step: different on each rank, and in each step.

Outside of XLA the seeds of operations do that (`randomness`). XLA ignores them: compiled steps of all ranks would draw
the same numbers. And the state of a tf.random.Generator is the same on all ranks, too.
"""

import functools
import inspect

import numpy as np
import tensorflow as tf

from matexrun.collectives import ops
from matexrun.inject import lifecycle, patching, step
from matexrun.inject.randomness import STRIDE

_ROOM = 2**32  # more numbers than any draw takes of a generator


def patch() -> None:
    """Apply all patches of this file; tried on TF 2.18 to 2.21."""
    _patch_operations()
    _patch_generators()


def _patch_operations() -> None:
    """Patch the wrappers of random operations in tensorflow.python.ops.gen_random_ops: the functions of tf.random, and
    dropout and augmentation that use those, call them there. Those that are left out can't be compiled by XLA."""
    from tensorflow.python.ops import gen_random_ops

    for stateless in (_random_standard_normal, _truncated_normal, _random_uniform, _random_uniform_int, _multinomial,
                      _random_shuffle):  # fmt: skip
        name = stateless.__name__.removeprefix("_")
        original = getattr(gen_random_ops, name)
        parameters = inspect.signature(stateless).parameters.values()
        patching.check_signature(original, tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD))
        setattr(gen_random_ops, name, _replacement(original, stateless))


def _replacement(original, stateless):
    @functools.wraps(original)
    def operation(*args, seed=0, seed2=0, name=None, **kwargs):
        if not (step.in_graph_of_step() and ops.in_cluster()):
            return original(*args, seed=seed, seed2=seed2, name=name, **kwargs)
        return stateless(*args, seed=_next_seed(seed, seed2), **kwargs)

    return operation


def _random_standard_normal(shape, dtype, *, seed):
    return tf.random.stateless_normal(shape, seed, dtype=dtype)


def _truncated_normal(shape, dtype, *, seed):
    return tf.random.stateless_truncated_normal(shape, seed, dtype=dtype)


def _random_uniform(shape, dtype, *, seed):
    return tf.random.stateless_uniform(shape, seed, dtype=dtype)


def _random_uniform_int(shape, minval, maxval, *, seed):
    return tf.random.stateless_uniform(shape, seed, minval, maxval, tf.convert_to_tensor(minval).dtype)


def _multinomial(logits, num_samples, *, seed, output_dtype=tf.int64):
    """By Gumbel's trick: XLA has no stateless_categorical."""
    shape = tf.stack([tf.shape(logits)[0], num_samples, tf.shape(logits)[1]])
    uniform = tf.random.stateless_uniform(shape, seed, minval=np.finfo(np.float32).tiny)
    noise = -tf.math.log(-tf.math.log(uniform))
    return tf.argmax(tf.cast(logits, tf.float32)[:, tf.newaxis] + noise, -1, output_dtype)


def _random_shuffle(value, *, seed):
    return tf.gather(value, tf.argsort(tf.random.stateless_uniform([tf.shape(value)[0]], seed)))


def _next_seed(seed: int, seed2: int):
    """For the next draw of a compiled step. seed, seed2: those of the operation, which tell ranks and operations apart;
    a count of all draws tells steps apart, and turns of loops."""
    mixed = (seed * 0x9E3779B97F4A7C15 + seed2 * 0xC2B2AE3D27D4EB4F) % 2**63
    return tf.stack([tf.constant(mixed, tf.int64), _draws().assign_add(1, read_value=True)])


@functools.cache
def _draws() -> tf.Variable:
    with tf.init_scope():
        return tf.Variable(0, dtype=tf.int64, trainable=False, name="matexrun_draws")


def _patch_generators() -> None:
    """Patch what tf.random.Generator's methods draw with, and its state from the operating system's entropy."""

    @patching.method(tf.random.Generator, "_prepare_key_counter", ("shape",))
    def prepare(original, self, shape):
        """In a step the generator moves on by the same amount on all ranks, whatever they draw, and the rank is added
        to the key, which selects one of Philox' independent sequences."""
        current = step.current()
        if not step.in_graph_of_step() or lifecycle.job().size == 1:
            return original(self, shape)
        key, counter = original(self, [_ROOM])
        current.settles([self.state])
        return key + tf.constant(lifecycle.rank() * STRIDE, key.dtype), counter

    created = 0

    def from_non_deterministic_state(cls, alg=None):
        nonlocal created
        created += 1
        return cls.from_seed((lifecycle.job().seed << 24) + created, alg=alg)

    original = tf.random.Generator.__dict__["from_non_deterministic_state"]
    patching.check_signature(original.__func__, ("cls", "alg"))
    replacement = functools.wraps(original.__func__)(from_non_deterministic_state)
    tf.random.Generator.from_non_deterministic_state = classmethod(replacement)
