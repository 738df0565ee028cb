"""Models of tf_keras with BatchNormalization: dense, fused in convolutions, masked, with slices of unequal size."""

import numpy as np
import tf_keras as keras
from named import case as batchnorm_case
from tfkeras_cases import BATCH, FEATURES, Rows, adam, fit, main, table


def trained(x, *layers, batch_size=BATCH):
    model = keras.Sequential([keras.Input((x.shape[1],)), Rows(name="rows"), *layers, keras.layers.Dense(1)])
    model.compile(adam(), "mse")
    y = table()[1]
    results = fit(model, x, y[: len(x)], batch_size=batch_size)
    moving = [w.numpy().tolist() for w in model.non_trainable_variables if "moving" in w.name]
    assert moving
    return {**results, "weights moving": moving, "loss": model.evaluate(x, y[: len(x)], verbose=0)}


@batchnorm_case
def dense(_):
    layers = keras.layers.Dense(8, activation="tanh"), keras.layers.BatchNormalization(momentum=0.8)
    return trained(table()[0], *layers)


@batchnorm_case
def fewer_rows_than_ranks(_):
    return trained(table()[0][:7], keras.layers.BatchNormalization(momentum=0.8), batch_size=2)


@batchnorm_case
def fused(_):
    x = table()[0]
    pixels = np.random.default_rng(5).normal(2.0, 3.0, (len(x), 32)).astype("float32")
    return trained(
        np.column_stack([pixels, x[:, -1]]),
        keras.layers.Reshape((4, 4, 2)),
        keras.layers.Conv2D(3, 3, padding="same", use_bias=False),
        keras.layers.BatchNormalization(momentum=0.8),
        keras.layers.Flatten(),
    )


@batchnorm_case
def masked(_):
    x = table()[0]
    lengths = 1 + np.arange(len(x)) % 3
    sequences = np.stack([x[:, :FEATURES] * (step < lengths)[:, None] for step in range(3)], 1)
    return trained(
        np.column_stack([sequences.reshape(len(x), -1), x[:, -1]]).astype("float32"),
        keras.layers.Reshape((3, FEATURES)),
        keras.layers.Masking(),
        keras.layers.BatchNormalization(momentum=0.8),
        keras.layers.GlobalAveragePooling1D(),
    )


if __name__ == "__main__":
    main()
