"""evaluate, predict and the methods that take one batch."""

import keras
import numpy as np
import tensorflow as tf
from cases import BATCH, FEATURES, N, adam, case, labels, main, mlp, outcome, table
from rows import Rows


def compiled(jit):
    model = mlp()
    model.compile(adam(), "mse", metrics=["mae", keras.metrics.RootMeanSquaredError()], jit_compile=jit)
    return model


@case
def evaluate(jit):
    model, (x, y) = compiled(jit), table()
    plain = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    weighted = model.evaluate(x, y, batch_size=BATCH, sample_weight=np.arange(N), verbose=0, return_dict=True)
    steps = model.evaluate(tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH), steps=3, verbose=0)
    return outcome(model, plain=plain, weighted=weighted, steps=steps)


@case
def evaluate_sum_and_accuracy(jit):
    model = mlp(3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model.compile(adam(), loss, metrics=["accuracy"], jit_compile=jit)
    return outcome(model, values=model.evaluate(*labels(), batch_size=BATCH, verbose=0))


@case
def predict(jit):
    model, (x, _) = compiled(jit), table()
    predicted = model.predict(x, batch_size=BATCH, verbose=0)
    from_dataset = model.predict(tf.data.Dataset.from_tensor_slices(x).batch(11), verbose=0)
    one = model.predict(x[:1], verbose=0)
    return outcome(model, array=predicted.tolist(), dataset=from_dataset.tolist(), one=one.tolist())


@case
def predict_several_outputs(jit):
    inputs = keras.Input((FEATURES + 1,))
    hidden = Rows(name="rows")(inputs)
    outputs = {"value": keras.layers.Dense(1)(hidden), "kind": keras.layers.Dense(3, activation="softmax")(hidden)}
    model = keras.Model(inputs, outputs)
    model.compile(adam(), jit_compile=jit)
    predicted = model.predict(table()[0], batch_size=BATCH, verbose=0)
    return outcome(model, **{name: value.tolist() for name, value in predicted.items()})


@case
def call_is_whole(jit):
    """model(x) is no step: every rank computes it as it stands."""
    model, (x, _) = compiled(jit), table()
    return {"called": keras.ops.convert_to_numpy(model(x)).tolist()}


@case
def train_on_batch(jit):
    model, (x, y) = compiled(jit), table()
    logs = [
        model.train_on_batch(x[start : start + BATCH], y[start : start + BATCH], return_dict=True)
        for _ in range(2)
        for start in range(0, N, BATCH)
    ]
    return outcome(model, logs=logs)


@case
def test_and_predict_on_batch(jit):
    model, (x, y) = compiled(jit), table()
    tested = [model.test_on_batch(x[:11], y[:11]), model.test_on_batch(x[11:12], y[11:12])]
    predicted = [model.predict_on_batch(x[:size]) for size in (7, 1)]
    return outcome(model, tested=tested, predicted=[np.asarray(values).tolist() for values in predicted])


@case
def train_on_batch_with_weights(jit):
    model = mlp(3, "softmax")
    model.compile(adam(), "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=jit)
    x, y = labels()
    weighted = model.train_on_batch(x[:BATCH], y[:BATCH], sample_weight=np.arange(1.0, BATCH + 1))
    by_class = model.train_on_batch(x[7:16], y[7:16], class_weight={0: 0.2, 1: 2.0, 2: 1.0})
    return outcome(model, weighted=weighted, by_class=by_class)


if __name__ == "__main__":
    main()
