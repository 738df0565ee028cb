"""Every kind of input that model.fit takes.

Kinds whose batches look the same to the step share one model, which is traced once.
"""

import keras
import numpy as np
import tensorflow as tf
from cases import BATCH, FEATURES, case, fit, labels, main, mlp, table
from rows import Rows


def compiled(jit):
    model = mlp()
    model.compile("sgd", "mse", metrics=["mae"], jit_compile=jit)
    return model


class EachAnew:
    """fit of one model, which begins with the same weights each time."""

    def __init__(self, model):
        self.model, self.start = model, model.get_weights()

    def fit(self, *data, **options):
        self.model.set_weights(self.start)
        return fit(self.model, *data, **options)


@case
def arrays(jit):
    """Batches of one row, of fewer rows than there are ranks, of another size at the end, and of all there is."""
    anew, (x, y) = EachAnew(compiled(jit)), table()
    return {
        "numpy": anew.fit(x, y, batch_size=BATCH),
        "last of 4, not shuffled": anew.fit(*table(53), batch_size=BATCH, shuffle=False),
        "of 17": anew.fit(x, y, batch_size=17, epochs=1),
        "of 2": anew.fit(x, y, batch_size=2, epochs=1),
        "of 1": anew.fit(*table(5), batch_size=1, epochs=1),
        "5 rows": anew.fit(*table(5), batch_size=32),
        "tensors": anew.fit(tf.constant(x), tf.constant(y), batch_size=BATCH),
    }


@case
def datasets(jit):
    anew, rows = EachAnew(compiled(jit)), tf.data.Dataset.from_tensor_slices(table())
    return {
        "batched": anew.fit(rows.batch(BATCH)),
        "shuffled": anew.fit(rows.shuffle(50, seed=5).batch(BATCH).prefetch(2)),
        "mapped, repeated": anew.fit(rows.map(lambda x, y: (x, 2 * y)).batch(BATCH).repeat(), steps_per_epoch=8),
        "3 steps an epoch": anew.fit(rows.batch(BATCH), steps_per_epoch=3),
        "without the remainder": anew.fit(rows.batch(BATCH, drop_remainder=True)),
    }


@case
def slices_of_many_shapes(jit):
    """8 rows a rank on 2 and on 3 ranks, then one row; 3 and 2, then one and none: each shape has its own schedule."""
    model = compiled(jit)
    return {
        "sixteen": fit(model, *table(33), batch_size=16),
        "twenty-four": fit(model, *table(49), batch_size=24),
        "seven": fit(model, *table(), batch_size=BATCH),
    }


@case
def dicts(jit):
    inputs = {"a": keras.Input((FEATURES + 1,), name="a"), "b": keras.Input((2,), name="b")}
    hidden = keras.layers.Dense(8, activation="tanh")(Rows(name="rows")(inputs["a"]))
    joined = keras.layers.Concatenate()([hidden, inputs["b"]])
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile("sgd", "mse", jit_compile=jit)
    x, y = table()
    return fit(model, {"a": x, "b": x[:, :2] ** 2}, y, batch_size=BATCH)


@case
def several_inputs_and_outputs(jit):
    first, second = keras.Input((FEATURES + 1,)), keras.Input((2,))
    hidden = keras.layers.Dense(8, activation="tanh")(Rows(name="rows")(first))
    hidden = keras.layers.Concatenate()([hidden, second])
    value = keras.layers.Dense(1, name="value")(hidden)
    kind = keras.layers.Dense(3, name="kind")(hidden)
    model = keras.Model([first, second], {"value": value, "kind": kind})
    model.compile(
        "sgd",
        loss={"value": "mae", "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        loss_weights={"value": 0.3, "kind": 1.7},
        metrics={"value": ["mse"], "kind": ["accuracy"]},
        jit_compile=jit,
    )
    x, y = table()
    return fit(model, [x, x[:, 1:3]], {"value": y, "kind": labels()[1]}, batch_size=BATCH)


class Slices(keras.utils.PyDataset):
    """Batches by number, cut from arrays."""

    def __init__(self, x, y, **options):
        super().__init__(**options)
        self.x, self.y = x, y

    def __len__(self):
        return -(-len(self.x) // BATCH)

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[rows], self.y[rows]


@case
def py_dataset(jit):
    return fit(compiled(jit), Slices(*table()))


@case
def py_dataset_with_workers(jit):
    return fit(compiled(jit), Slices(*table(), workers=2), shuffle=False)


def endless():
    x, y = table()
    while True:
        for start in range(0, len(x), BATCH):
            yield x[start : start + BATCH], y[start : start + BATCH]


@case
def generator_with_weights(jit):
    weighted = ((x, y, np.linspace(0.5, 2, len(x))) for x, y in endless())
    return fit(compiled(jit), weighted, steps_per_epoch=8)


if __name__ == "__main__":
    main()
