"""evaluate, predict and the methods that take one batch."""

import keras
import numpy as np
import tensorflow as tf
from cases import BATCH, FEATURES, N, case, labels, main, mlp, outcome, table
from rows import Rows


def compiled(jit):
    model = mlp()
    model.compile("sgd", "mse", metrics=["mae", keras.metrics.RootMeanSquaredError()], jit_compile=jit)
    return model


@case
def evaluate_predict_and_call(jit):
    """model(x) is no step: every rank computes it as it stands."""
    model, (x, y) = compiled(jit), table()
    return outcome(
        model,
        evaluated=model.evaluate(x, y, batch_size=BATCH, verbose=0),
        weighted=model.evaluate(x, y, batch_size=BATCH, sample_weight=np.arange(N), verbose=0, return_dict=True),
        three_steps=model.evaluate(tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH), steps=3, verbose=0),
        predicted=model.predict(x, batch_size=BATCH, verbose=0).tolist(),
        of_dataset=model.predict(tf.data.Dataset.from_tensor_slices(x).batch(11), verbose=0).tolist(),
        of_one_row=model.predict(x[:1], verbose=0).tolist(),
        called=keras.ops.convert_to_numpy(model(x)).tolist(),
    )


@case
def evaluate_sum_and_accuracy(jit):
    model = mlp(3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model.compile("sgd", loss, metrics=["accuracy"], jit_compile=jit)
    return outcome(model, values=model.evaluate(*labels(), batch_size=BATCH, verbose=0))


@case
def predict_several_outputs(jit):
    inputs = keras.Input((FEATURES + 1,))
    hidden = Rows(name="rows")(inputs)
    outputs = {"value": keras.layers.Dense(1)(hidden), "kind": keras.layers.Dense(3, activation="softmax")(hidden)}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", jit_compile=jit)
    predicted = model.predict(table()[0], batch_size=BATCH, verbose=0)
    return outcome(model, **{name: value.tolist() for name, value in predicted.items()})


@case
def methods_for_one_batch(jit):
    model, (x, y) = compiled(jit), table()
    logs = [
        model.train_on_batch(x[start : start + BATCH], y[start : start + BATCH], return_dict=True)
        for _ in range(2)
        for start in range(0, N, BATCH)
    ]
    tested = [model.test_on_batch(x[:11], y[:11]), model.test_on_batch(x[11:12], y[11:12])]
    predicted = [np.asarray(model.predict_on_batch(x[:size])).tolist() for size in (7, 1)]
    return outcome(model, logs=logs, tested=tested, predicted=predicted)


@case
def train_on_batch_with_weights(jit):
    model = mlp(3, "softmax")
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=jit)
    x, y = labels()
    weighted = model.train_on_batch(x[:BATCH], y[:BATCH], sample_weight=np.arange(1.0, BATCH + 1))
    by_class = model.train_on_batch(x[7:16], y[7:16], class_weight={0: 0.2, 1: 2.0, 2: 1.0})
    return outcome(model, weighted=weighted, by_class=by_class)


if __name__ == "__main__":
    main()
