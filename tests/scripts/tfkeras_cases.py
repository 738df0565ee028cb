"""What the scripts of tf_keras beside this file share: a layer that notes rows, small models, a case's outcome.

See `named` for their usage and data.
"""

import named
import numpy as np
import tensorflow as tf
import tf_keras as keras
from named import BATCH, EPOCHS, FEATURES, N, case, labels, table

__all__ = [
    "BATCH",
    "EPOCHS",
    "FEATURES",
    "N",
    "Rows",
    "adam",
    "case",
    "fit",
    "labels",
    "main",
    "mlp",
    "outcome",
    "table",
]


class Notes:
    """Variables that are no weights: tf_keras looks into lists and dicts, but not into objects of other classes."""

    def __init__(self, calls=128):
        self.lines = {mode: tf.Variable(tf.zeros((calls, 3), tf.int64)) for mode in ("train", "infer")}
        self.used = {mode: tf.Variable(0, dtype=tf.int64) for mode in ("train", "infer")}


class Rows(keras.layers.Layer):
    """Takes the last column, an id, off its input [rows, features + 1] and notes what came, as the layer in `rows`."""

    def __init__(self, dtype="float32", **kwargs):
        super().__init__(dtype=dtype, **kwargs)  # under any policy: ids would not survive float16

    def build(self, input_shape):
        self.notes = Notes()
        super().build(input_shape)

    def call(self, inputs, training=None):
        if not training and not tf.inside_function():
            return inputs[:, :-1]  # somebody tries the model; evaluate and predict are functions
        mode, ids = "train" if training else "infer", tf.cast(tf.round(inputs[:, -1]), tf.int64)
        line = tf.stack([tf.reduce_sum(tf.ones_like(ids)), tf.reduce_sum(ids), tf.reduce_sum(ids * ids)])
        lines, used = self.notes.lines[mode], self.notes.used[mode]
        lines.assign(tf.tensor_scatter_nd_update(lines, [[used]], [line]))
        used.assign_add(1)
        return inputs[:, :-1]

    def take(self):
        """The lines so far as {"train": [[rows, ids, squares], ...], "infer": [...]}, and start afresh."""
        taken = {}
        for mode, used in self.notes.used.items():
            taken[mode] = self.notes.lines[mode].numpy()[: int(used)].tolist()
            used.assign(0)
        return taken


def mlp(outputs=1, activation=None, **hidden):
    """[rows, FEATURES + 1] -> [rows, outputs]; smooth, so that rounding does not grow."""
    return keras.Sequential(
        [
            keras.Input((FEATURES + 1,)),
            Rows(name="rows"),
            keras.layers.Dense(8, activation="tanh", **hidden),
            keras.layers.Dense(outputs, activation=activation, dtype="float32"),
        ]
    )


def adam():
    """Its epsilon is large, because dividing by a gradient near zero magnifies that gradient's rounding."""
    return keras.optimizers.Adam(0.01, epsilon=1e-3)


def fit(model, *data, **options):
    """model.fit without output; the outcome of it as a dict for JSON."""
    history = model.fit(*data, **{"epochs": EPOCHS, "verbose": 0, **options})
    return outcome(model, history=history.history)


def outcome(model, **more):
    """The weights of `model`, the rows it was called with since the last time, and `more`."""
    return {
        "weights": [np.asarray(weight).tolist() for weight in model.trainable_variables],
        "rows": model.get_layer("rows").take(),
        **more,
    }


def main():
    named.main(keras)
