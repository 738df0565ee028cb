"""What the scripts of Keras 3 beside this file share: small models, and how a case's outcome is put down.

See `named` for their usage and data.
"""

import keras
import named
from named import BATCH, EPOCHS, FEATURES, N, case, labels, table
from rows import Rows

__all__ = ["BATCH", "EPOCHS", "FEATURES", "N", "adam", "case", "fit", "labels", "main", "mlp", "outcome", "table"]


def mlp(outputs=1, activation=None, **last):
    """[rows, FEATURES + 1] -> [rows, outputs]; smooth, so that rounding does not grow."""
    return keras.Sequential(
        [
            keras.Input((FEATURES + 1,)),
            Rows(name="rows"),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(outputs, activation=activation, **last),
        ]
    )


def adam():
    """Its epsilon is large, because dividing by a gradient near zero magnifies that gradient's rounding."""
    return keras.optimizers.Adam(0.01, epsilon=1e-3)


def fit(model, *data, **options):
    """model.fit without output; the outcome of it as a dict for JSON."""
    options = {"epochs": EPOCHS, "verbose": 0, **options}
    history = model.fit(*data, **options)
    return outcome(model, history=history.history)


def outcome(model, **more):
    """The weights of `model`, the rows it was called with since the last time, and `more`."""
    return {
        "weights": [keras.ops.convert_to_numpy(weight).tolist() for weight in model.trainable_variables],
        "rows": model.get_layer("rows").take(),
        **more,
    }


def main():
    named.main(keras)
