"""Losses whose value on a batch does not follow from its slices; the last time, nothing catches the error."""

import keras
import tensorflow as tf
from cases import BATCH, case, main, mlp, table
from keras import ops


def train(loss, binary=False):
    model, (x, y) = mlp(1, "sigmoid"), table()
    model.compile("sgd", loss)
    model.fit(x, (y > 0).astype("float32") if binary else y, batch_size=BATCH, epochs=1, verbose=0)
    return {"trained": True}


@case
def dice(jit):
    return train(keras.losses.Dice(), binary=True)


@case
def tversky(jit):
    return train(keras.losses.Tversky(), binary=True)


@case
def summed_error(jit):
    def summed_error(true, predicted):
        return tf.reduce_sum(tf.square(true - predicted))

    return train(summed_error)


def contrast_in_batch(true, predicted):
    return ops.mean(ops.square(predicted - ops.mean(predicted))) + ops.mean(ops.abs(true - predicted))


@case
def contrast(jit):
    return train(contrast_in_batch)


if __name__ == "__main__":
    main()
    train(contrast_in_batch)
    print("trained")
