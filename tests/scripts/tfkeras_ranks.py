"""usage: python tfkeras_ranks.py OUT - what a run of tf_keras without any seed comes to, and what it may not do.

Writes OUT/<pid>.json: {"weights": ..., "refused": {name: message of the error}}.
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf
import tf_keras as keras
from named import BATCH, FEATURES, table

x, y = table()


def layers(*more):
    return [keras.layers.Dense(4), *more, keras.layers.Dense(1)]


normalised = keras.Sequential(layers(keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)))
normalised.compile("adam", "mse")
normalised.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)


def none_reduced():
    model = keras.Sequential(layers())
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="none"))
    model.fit(x, y, batch_size=BATCH, verbose=0)


def loss_of_a_sum():
    model = keras.Sequential(layers())
    model.compile("sgd", lambda true, predicted: tf.reduce_sum((true - predicted) ** 2))
    model.fit(x, y, batch_size=BATCH, verbose=0)


def state_of_each_row():
    model = keras.Sequential([keras.layers.LSTM(2, stateful=True, batch_input_shape=(6, 1, FEATURES + 1))])
    model.compile("sgd", "mse")
    model.fit(np.reshape(x[:48], [48, 1, -1]), y[:48], batch_size=6, verbose=0)


refused = {}
for attempt in (none_reduced, loss_of_a_sum, state_of_each_row):
    try:
        attempt()
    except Exception as error:
        refused[attempt.__name__] = str(error)
with open(os.path.join(sys.argv[1], f"{os.getpid()}.json"), "w") as file:
    json.dump({"weights": [weight.tolist() for weight in normalised.get_weights()], "refused": refused}, file)
