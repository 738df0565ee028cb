"""Every kind of input that model.fit takes."""

import keras
import numpy as np
import tensorflow as tf
from cases import BATCH, FEATURES, adam, case, fit, labels, main, mlp, table
from rows import Rows


def compiled(jit):
    model = mlp()
    model.compile(adam(), "mse", metrics=["mae"], jit_compile=jit)
    return model


@case
def numpy_arrays(jit):
    return fit(compiled(jit), *table(), batch_size=BATCH)


@case
def numpy_not_shuffled_last_of_4(jit):
    return fit(compiled(jit), *table(53), batch_size=BATCH, shuffle=False)


@case
def slices_of_8_and_1(jit):
    """Batches that are 8 rows a rank on 2 or 3 ranks, then a batch of one row: other shapes, another schedule."""
    model = compiled(jit)
    sixteen = fit(model, *table(33), batch_size=16)
    more = fit(model, *table(49), batch_size=24)
    return {"sixteen": sixteen, "twenty_four": more}


@case
def smaller_than_a_batch(jit):
    return fit(compiled(jit), *table(5), batch_size=32)


@case
def tensors(jit):
    x, y = table()
    return fit(compiled(jit), tf.constant(x), tf.constant(y), batch_size=BATCH)


@case
def dataset(jit):
    return fit(compiled(jit), tf.data.Dataset.from_tensor_slices(table()).batch(BATCH))


@case
def dataset_shuffled(jit):
    data = tf.data.Dataset.from_tensor_slices(table()).shuffle(50, seed=5).batch(BATCH).prefetch(2)
    return fit(compiled(jit), data)


@case
def dataset_drop_remainder(jit):
    return fit(compiled(jit), tf.data.Dataset.from_tensor_slices(table(53)).batch(BATCH, drop_remainder=True))


@case
def dataset_mapped_repeated(jit):
    data = tf.data.Dataset.from_tensor_slices(table()).map(lambda x, y: (x, 2 * y)).batch(BATCH).repeat()
    return fit(compiled(jit), data, steps_per_epoch=8)


@case
def dicts(jit):
    inputs = {"a": keras.Input((FEATURES + 1,), name="a"), "b": keras.Input((2,), name="b")}
    hidden = keras.layers.Dense(8, activation="tanh")(Rows(name="rows")(inputs["a"]))
    joined = keras.layers.Concatenate()([hidden, inputs["b"]])
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile(adam(), "mse", jit_compile=jit)
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
        adam(),
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
def generator(jit):
    return fit(compiled(jit), endless(), steps_per_epoch=8)


@case
def generator_with_weights(jit):
    weighted = ((x, y, np.linspace(0.5, 2, len(x))) for x, y in endless())
    return fit(compiled(jit), weighted, steps_per_epoch=8)


if __name__ == "__main__":
    main()
