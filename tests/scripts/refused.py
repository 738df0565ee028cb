"""usage: python refused.py OUT LOSS: one epoch with a loss whose value on a batch does not follow from its slices."""

import sys

import keras
import tensorflow as tf
from cases import BATCH, mlp, table
from keras import ops


def summed_error(true, predicted):
    return tf.reduce_sum(tf.square(true - predicted))


def contrast_in_batch(true, predicted):
    return ops.mean(ops.square(predicted - ops.mean(predicted))) + ops.mean(ops.abs(true - predicted))


if __name__ == "__main__":
    keras.utils.set_random_seed(3)
    model = mlp(1, "sigmoid")
    x, y = table()
    losses = {
        "dice": (keras.losses.Dice(), x, (y > 0).astype("float32")),
        "tversky": (keras.losses.Tversky(), x, (y > 0).astype("float32")),
        "summed_error": (summed_error, x, y),
        "contrast_in_batch": (contrast_in_batch, x, y),
    }
    loss, x, y = losses[sys.argv[2]]
    model.compile("sgd", loss)
    model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)
    print("trained")
