"""usage: python random_numbers.py OUT: what is drawn in training steps, compiled or not, and outside of them.

Each process writes OUT/<pid>.json: {"jit" or "graph" or "eager": {kind of draw: one list of numbers a step},
"outside": {what: numbers}}.
"""

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf

STEPS = 6
NUMBERS = 8  # a draw


def draws(generator) -> dict:
    """{kind: float32 [NUMBERS]} by the functions that can be compiled."""
    return {
        "normal": tf.random.normal([NUMBERS]),
        "seeded": tf.random.normal([NUMBERS], seed=5),
        "truncated": tf.random.truncated_normal([NUMBERS], 3.0, 2.0),
        "uniform": tf.random.uniform([NUMBERS], -2.0, 2.0),
        "integers": tf.random.uniform([NUMBERS], 0, 1 << 20, tf.int32),
        "categorical": tf.random.categorical(tf.zeros([NUMBERS, 1000]), 1)[:, 0],
        "shuffle": tf.random.shuffle(tf.range(NUMBERS)),
        "tf dropout": tf.nn.dropout(tf.ones([4 * NUMBERS]), 0.5),
        "keras": keras.random.normal([NUMBERS]),
        "generator": generator.normal([NUMBERS]),
    }


class Noting(keras.layers.Layer):
    """Adds what it draws to its input, times zero, and keeps it. Makes a layer of its own when it is first called."""

    def __init__(self):
        super().__init__()
        self.generator = tf.random.Generator.from_seed(4)
        self.noise = keras.layers.GaussianNoise(1.0)
        self.dropout = keras.layers.Dropout(0.5)
        self.augment = [keras.layers.RandomFlip("horizontal"), keras.layers.RandomBrightness(0.5)]
        self.kept, self.at, self.late = {}, tf.Variable(0), None

    def draw(self):
        """{kind: numbers} of everything that is random."""
        images = tf.tile(tf.reshape(tf.range(4.0), [1, 2, 2, 1]), [NUMBERS, 1, 1, 1])
        return {
            **draws(self.generator),
            "noise": self.noise(tf.zeros([NUMBERS]), training=True),
            "keras dropout": self.dropout(tf.ones([4 * NUMBERS]), training=True),
            "flip": self.augment[0](images, training=True)[:, 0, 0, 0],
            "brightness": self.augment[1](images * 10, training=True)[:, 0, 0, 0],
        }

    def call(self, inputs, training=False):
        if self.late is None:
            self.late = keras.layers.Dense(1)
            self.late.build([None, 3])
        if not training:
            return self.late(inputs)
        added = 0.0
        for kind, numbers in self.draw().items():
            numbers = tf.cast(numbers, tf.float32)
            with tf.init_scope():
                if kind not in self.kept:
                    self.kept[kind] = tf.Variable(tf.zeros([STEPS, *numbers.shape]), trainable=False)
            self.kept[kind].scatter_nd_update([[self.at]], [numbers])
            added += 0.0 * tf.reduce_sum(numbers)
        self.at.assign_add(1)
        return self.late(inputs) + added

    def compute_output_spec(self, inputs, training=False):
        raise NotImplementedError("so that it is built in its first step")


def trained(**options):
    """{kind: [STEPS, numbers]} of a model that is trained for STEPS steps."""
    keras.utils.set_random_seed(3)
    layer = Noting()
    model = type("Model", (keras.Model,), {"call": lambda self, x, training=False: layer(x, training=training)})()
    model.layer = layer
    model.compile("sgd", "mse", **options)
    x = np.random.default_rng(1).normal(size=(5 * STEPS, 3)).astype("float32")
    model.fit(x, x[:, :1], batch_size=5, epochs=1, verbose=0)
    return {kind: kept.numpy().tolist() for kind, kept in layer.kept.items()}


if __name__ == "__main__":
    results = {
        "jit": trained(jit_compile=True),
        "graph": trained(jit_compile=False),
        "eager": trained(run_eagerly=True),
    }
    outside = {**draws(tf.random.get_global_generator()), "initial": keras.layers.Dense(3)(tf.ones([1, 2]))}
    results["outside"] = {kind: np.asarray(numbers).tolist() for kind, numbers in outside.items()}
    with open(os.path.join(sys.argv[1], f"{os.getpid()}.json"), "w") as file:
        json.dump(results, file)
