"""Models with BatchNormalization: dense, convolutional, masked, in mixed precision, with slices of unequal size."""

import inspect

import keras
import numpy as np
import tensorflow as tf
from cases import BATCH, FEATURES, adam, fit, main, table
from cases import case as batchnorm_case
from rows import Rows

EPOCHS = 2


def trained(model, x, y, jit, batch_size=BATCH, loss="mse", **options):
    """The outcome of fit, and what BatchNormalization has gathered for inference."""
    model.compile(**{"optimizer": adam(), "loss": loss, "jit_compile": jit, **options})
    results = fit(model, x, y, batch_size=batch_size, epochs=EPOCHS)
    moving = [w.numpy().tolist() for w in model.non_trainable_variables if "moving" in w.path or "renorm" in w.path]
    return {**results, "weights moving": moving, "loss": model.evaluate(x, y, verbose=0)}


def dense_model(offset=(0.0, 100.0, -20.0, 0.0, 3.0), **options):
    """Its first layer normalises columns that are far from zero."""
    return keras.Sequential(
        [
            keras.Input((FEATURES + 1,)),
            Rows(name="rows"),
            keras.layers.Rescaling(1.0, offset=list(offset)),
            keras.layers.BatchNormalization(momentum=0.9, **options),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.Dense(1),
        ]
    )


@batchnorm_case
def dense(jit):
    return trained(dense_model(), *table(), jit)


@batchnorm_case
def renorm(jit):
    if "renorm" not in inspect.signature(keras.layers.BatchNormalization).parameters:  # before Keras 3.14
        return {"skip": "this Keras has no renorm"}
    return trained(dense_model(offset=[0.0, 1.0, -2.0, 0.0, 3.0], renorm=True), *table(), jit)


@batchnorm_case
def a_sum_as_loss(jit):
    return trained(dense_model(), *table(), jit, loss=keras.losses.MeanSquaredError("sum"))


@batchnorm_case
def fewer_rows_than_ranks(jit):
    """Batches of two rows, and one of a single row, whose variance is 0."""
    x, y = table(7)
    return trained(dense_model(), x, y, jit, batch_size=2)


@batchnorm_case
def convolutions(jit):
    """Images of 4 x 4 with two channels; normalised along the last axis and along the first."""
    rng = np.random.default_rng(5)
    x, y = table()
    pixels = rng.normal(2.0, 3.0, (len(x), 32)).astype("float32")
    model = keras.Sequential(
        [
            keras.Input((33,)),
            Rows(name="rows"),
            keras.layers.Reshape((4, 4, 2)),
            keras.layers.Conv2D(3, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(momentum=0.8),
            keras.layers.Activation("tanh"),
            keras.layers.Permute((3, 1, 2)),
            keras.layers.BatchNormalization(axis=1, momentum=0.8, scale=False),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    return trained(model, np.column_stack([pixels, x[:, -1]]), y, jit)


@batchnorm_case
def masked(jit):
    """Sequences of different lengths; padding does not count. In one batch of each epoch, no entry does at all."""
    x, y = table()
    lengths = 1 + np.arange(len(x)) % 3
    sequences = np.stack([x[:, :FEATURES] * (step < lengths)[:, None] for step in range(3)], 1)
    sequences[:BATCH] = 0
    flat = np.column_stack([sequences.reshape(len(x), -1), x[:, -1]]).astype("float32")
    model = keras.Sequential(
        [
            keras.Input((3 * FEATURES + 1,)),
            Rows(name="rows"),
            keras.layers.Reshape((3, FEATURES)),
            keras.layers.Masking(),
            keras.layers.BatchNormalization(momentum=0.8),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    return trained(model, flat, y, jit)


@batchnorm_case
def mixed_float16(jit):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential(
            [
                keras.Input((FEATURES + 1,)),
                Rows(name="rows"),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.BatchNormalization(momentum=0.9),
                keras.layers.Dense(1, dtype="float32"),
            ]
        )
        return trained(model, *table(), jit, optimizer=keras.optimizers.SGD(0.05))
    finally:
        keras.config.set_dtype_policy("float32")


@batchnorm_case
def eager(jit):
    """A step that is no graph."""
    x, y = table(20)
    return trained(dense_model(), x, y, False, run_eagerly=True)


@batchnorm_case
def loop(jit):
    """A training function of the script's own."""
    x, y = table()
    model = dense_model()
    optimizer = adam()

    @tf.function(jit_compile=jit)
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    starts = [start for _ in range(EPOCHS) for start in range(0, 42, BATCH)]
    losses = [float(train_step(x[start : start + BATCH], y[start : start + BATCH])) for start in starts]
    weights = [w.numpy().tolist() for w in model.weights]
    return {"losses": losses, "weights": weights}


if __name__ == "__main__":
    main()
