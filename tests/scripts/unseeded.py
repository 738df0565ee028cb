"""usage: python unseeded.py OUT: a script that sets no seed: with dropout, shuffled arrays and a shuffled dataset."""

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf
from cases import BATCH, FEATURES, fit, table
from rows import Rows


def trained(*data, **options):
    model = keras.Sequential(
        [
            keras.Input((FEATURES + 1,)),
            Rows(name="rows"),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.02), "mse", jit_compile=False)
    return fit(model, *data, epochs=8, **options)


if __name__ == "__main__":
    x, y = table()
    x[:, 0] += 0.01 * np.random.normal(size=len(x))
    results = {
        "arrays": trained(x, y, batch_size=BATCH),
        "dataset": trained(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).batch(BATCH)),
    }
    out = sys.argv[1]
    with open(os.path.join(out, f"{os.getpid()}.json"), "w") as file:
        json.dump(results, file)
