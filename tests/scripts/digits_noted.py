"""usage: python digits_noted.py OUT [arguments of examples/digits.py]: the example, whose model notes what it is given.

OUT/<pid>.json holds the History in full precision, and the rows of fit and of the evaluation after it.
"""

import json
import os
import sys
from pathlib import Path

import keras
import tensorflow as tf
from rows import Rows

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import digits  # noqa: E402


@keras.saving.register_keras_serializable("tests")
class Images(Rows):
    """Images have no id column: where an image's ink is tells it from (nearly all) others."""

    def split(self, inputs):
        places = tf.reshape(tf.range(64, dtype=tf.float32), (8, 8, 1))
        return tf.cast(tf.reduce_sum(inputs * 16 * places, axis=(1, 2, 3)), tf.int64), inputs

    def compute_output_spec(self, inputs, training=False):
        return keras.KerasTensor(inputs.shape, inputs.dtype)


class Noted(keras.Sequential):
    """Keeps the outcome of fit and evaluate."""

    outcomes = {}

    def fit(self, *args, **kwargs):
        history = super().fit(*args, **kwargs)
        self.outcomes["fit"] = {"history": history.history, "rows": self.get_layer("rows").take()}
        return history

    def evaluate(self, *args, **kwargs):
        values = super().evaluate(*args, **kwargs)
        if "fit" in self.outcomes:  # fit evaluates too
            self.outcomes["evaluate"] = {"values": values, "rows": self.get_layer("rows").take()}
        return values


def build_model(original=digits.build_model):
    model = original()
    noted = Noted([keras.Input((8, 8, 1)), Images(calls=1024, name="rows"), *model.layers])
    noted.compile_from_config(model.get_compile_config())
    return noted


if __name__ == "__main__":
    out = sys.argv.pop(1)
    digits.build_model = build_model
    digits.main()
    with open(os.path.join(out, f"{os.getpid()}.json"), "w") as file:
        json.dump(Noted.outcomes, file)
