"""What the scripts v1_*.py share: data with an id column, small models, and a main() for named examples.

usage of each script: python SCRIPT OUT [--only NAME ...]

Every process writes OUT/<pid>.json: {example: {"losses": ..., "weights": ..., "rows": ..., ...} or {"error": text}}.
"""

import argparse

import named
import numpy as np
import tensorflow.compat.v1 as tf
from named import BATCH, FEATURES, N

EXAMPLES = {}


def example(function):
    """Register function() -> results under its name; it runs in a graph of its own, with a seed."""
    EXAMPLES[function.__name__] = function
    return function


def table(n=N, outputs=1, seed=7):
    """x float32 [n, FEATURES + 1], whose last column is the row's id / n, and y float32 [n, outputs]."""
    x, y = named.table(n, outputs, seed)
    x[:, -1] /= n
    return x, y


def batches(*arrays, epochs=1, size=BATCH):
    """Slices of `size` rows, epoch by epoch."""
    for _ in range(epochs):
        for start in range(0, len(arrays[0]), size):
            yield tuple(array[start : start + size] for array in arrays)


class Rows:
    """Notes the ids of the rows that pass through it while they are computed."""

    def __init__(self):
        self.calls = []

    def __call__(self, x):
        """x [rows, FEATURES + 1] unchanged."""
        with tf.control_dependencies([tf.py_func(self._note, [x[:, -1]], [])]):
            return tf.identity(x)

    def _note(self, ids):
        ids = np.rint(ids * N)
        self.calls.append([len(ids), float(ids.sum()), float((ids**2).sum())])

    def clear(self):
        self.calls.clear()


def mlp(x, scope="mlp", outputs=1):
    """[rows, FEATURES + 1] -> [rows, outputs]; smooth, so that rounding does not grow."""
    with tf.variable_scope(scope, reuse=tf.AUTO_REUSE):
        w1 = tf.get_variable("w1", [x.shape[-1], 8], initializer=tf.glorot_uniform_initializer())
        b1 = tf.get_variable("b1", [8], initializer=tf.zeros_initializer())
        w2 = tf.get_variable("w2", [8, outputs], initializer=tf.random_normal_initializer(stddev=0.3))
        return tf.matmul(tf.tanh(tf.matmul(x, w1) + b1), w2)


def placeholders(outputs=1):
    """x and y of a batch of any size."""
    return tf.placeholder(tf.float32, [None, FEATURES + 1]), tf.placeholder(tf.float32, [None, outputs])


def adam():
    """Its epsilon is large, because dividing by a gradient near zero magnifies that gradient's rounding."""
    return tf.train.AdamOptimizer(0.01, epsilon=1e-3)


def weights(session):
    """All trainable variables, as lists."""
    return [value.tolist() for value in session.run(tf.trainable_variables())]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--only", nargs="*", default=None)
    args = parser.parse_args()

    def run(name):
        with tf.Graph().as_default():
            tf.set_random_seed(3)
            return EXAMPLES[name]()

    named.write_results(args.out, EXAMPLES if args.only is None else args.only, run)
