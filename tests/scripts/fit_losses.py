"""Losses: every reduction, masks, weights, penalties, and functions of the user's own."""

import keras
import numpy as np
import tensorflow as tf
from cases import BATCH, FEATURES, N, case, fit, labels, main, mlp, table
from keras import ops
from rows import Rows


def trained(jit, loss, **options):
    model = mlp()
    model.compile("sgd", loss, jit_compile=jit)
    return fit(model, *table(), batch_size=BATCH, **options)


@case
def reduction_sum_weighted(jit):
    return trained(jit, keras.losses.MeanSquaredError(reduction="sum"), sample_weight=np.linspace(0.1, 3, N))


@case
def sum_over_batch_size_weighted(jit):
    return trained(jit, keras.losses.Huber(), sample_weight=np.linspace(0.1, 3, N))


@case
def mean_with_sample_weight(jit):
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    return trained(jit, loss, sample_weight=np.linspace(0.1, 3, N) ** 2)


def model_with(jit, **options):
    model = keras.Sequential(
        [
            keras.Input((FEATURES + 1,)),
            Rows(name="rows"),
            keras.layers.Dense(8, activation="tanh", **options),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse", jit_compile=jit)
    return model


@case
def l2_regularizer_and_reduction_sum(jit):
    model = model_with(jit, kernel_regularizer=keras.regularizers.L2(0.1))
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"), jit_compile=jit)
    return fit(model, *table(), batch_size=BATCH)


@case
def activity_regularizer(jit):
    if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 14):
        return {"skip": "this Keras adds up activity penalties over the rows of a batch, which slices cannot make up"}
    return fit(model_with(jit, activity_regularizer=keras.regularizers.L1(0.05)), *table(), batch_size=BATCH)


class Penalty(keras.layers.Layer):
    """Adds the mean square of its input to the loss."""

    def call(self, inputs):
        self.add_loss(0.3 * ops.mean(ops.square(inputs)))
        return inputs


def quartic(true, predicted):
    return ops.mean((true - predicted) ** 4, axis=-1)


def log_cosh_mean(true, predicted):
    """One number instead of one a row."""
    return tf.reduce_mean(tf.math.log(tf.cosh(true - predicted)))


class Quantile(keras.losses.Loss):
    def call(self, true, predicted):
        error = true - predicted
        return ops.mean(ops.maximum(0.8 * error, -0.2 * error), axis=-1)


@case
def penalties(jit):
    """One of the weights alone, one that a layer makes of its rows, and a loss of the user's own beside them."""
    model = model_with(jit, kernel_regularizer=keras.regularizers.L2(0.1))
    model.add(Penalty())
    model.compile("sgd", log_cosh_mean, jit_compile=jit)
    return fit(model, *table(), batch_size=BATCH)


@case
def own_losses(jit):
    """One for each of three outputs."""
    inputs = keras.Input((FEATURES + 1,))
    hidden = keras.layers.Dense(8, activation="tanh")(Rows(name="rows")(inputs))
    model = keras.Model(inputs, [keras.layers.Dense(1)(hidden) for _ in range(3)])
    model.compile("sgd", [quartic, log_cosh_mean, Quantile()], loss_weights=[0.5, 1.0, 2.0], jit_compile=jit)
    x, y = table()
    return fit(model, x, [y, 2 * y, -y], batch_size=BATCH)


@case
def loss_per_output_and_reduction(jit):
    """Two outputs whose losses are reduced in two ways."""
    inputs = keras.Input((FEATURES + 1,))
    hidden = keras.layers.Dense(8, activation="tanh")(Rows(name="rows")(inputs))
    outputs = [keras.layers.Dense(1, name="value")(hidden), keras.layers.Dense(3, name="kind")(hidden)]
    model = keras.Model(inputs, outputs)
    losses = [
        keras.losses.MeanSquaredError(reduction="sum"),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    ]
    model.compile("sgd", losses, loss_weights=[0.1, 1.0], jit_compile=jit)
    x, y = table()
    return fit(model, x, [y, labels()[1]], batch_size=BATCH)


@case
def ignored_class(jit):
    """ignore_class makes a mask of the labels: how many count differs from slice to slice."""
    model = mlp(3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile("sgd", loss, jit_compile=jit)
    return fit(model, *labels(), batch_size=BATCH)


def sequences(n=N, length=6):
    """Token ids [n, length + 1], zero after a sequence's end, with the row's id as the last column; targets [n, .]."""
    rng = np.random.default_rng(11)
    tokens = rng.integers(1, 12, size=(n, length))
    lengths = rng.integers(1, length + 1, size=n)
    tokens[np.arange(length) >= lengths[:, None]] = 0
    return np.column_stack([tokens, np.arange(1, n + 1)]).astype("float32"), tokens % 3, lengths.astype("float32")


def embedded(inputs):
    tokens = Rows(name="rows")(inputs)
    return keras.layers.Embedding(12, 4, mask_zero=True)(tokens)


@case
def masked_sequences(jit):
    """A loss per time step: masked steps count nowhere, and slices hold different numbers of them."""
    inputs = keras.Input((7,))
    outputs = keras.layers.TimeDistributed(keras.layers.Dense(3))(embedded(inputs))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"], weighted_metrics=["accuracy"], jit_compile=jit)
    tokens, kinds, _ = sequences()
    return fit(model, tokens, kinds, batch_size=BATCH)


@case
def masked_lstm(jit):
    """A mask that ends inside the model: the loss is a plain mean over rows."""
    inputs = keras.Input((7,))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.LSTM(4)(embedded(inputs))))
    model.compile("sgd", "mse", jit_compile=jit)
    tokens, _, lengths = sequences()
    return fit(model, tokens, lengths, batch_size=BATCH)


if __name__ == "__main__":
    main()
