"""model.fit, evaluate and predict on datasets that make their rows with `map`, before they are batched."""

import tensorflow as tf
from cases import BATCH, EPOCHS, N, adam, case, fit, main, mlp, table


def compiled(jit):
    model = mlp()
    model.compile(adam(), "mse", metrics=["mae"], jit_compile=jit)
    return model


def numbers():
    return tf.data.Dataset.range(N)


def load(number):
    """Row `number` of the table, as if it were read from a file."""
    x, y = table()
    return {"x": tf.gather(x, number)}, tf.gather(y, number)


def twice(row, y):
    return row["x"] * tf.constant([2.0] * 5 + [1.0]), y


def noisy(x, y):
    return x, y + tf.random.uniform([1], seed=5)


@case
def shuffled(jit):
    """Loaded one by one, and evaluated and predicted, too."""
    parallel = {"num_parallel_calls": tf.data.AUTOTUNE}
    rows = numbers().shuffle(20).map(load, **parallel).map(twice, **parallel).batch(BATCH).prefetch(2)
    plain = numbers().map(load).map(twice).batch(BATCH)
    model = compiled(jit)
    results = fit(model, rows, validation_data=plain)
    results["evaluated"] = model.evaluate(plain, verbose=0)
    results["predicted"] = model.predict(plain.map(lambda x, y: x), verbose=0).tolist()
    return results


@case
def cached(jit):
    """The cache is that of both calls of fit, and of its epochs."""
    rows = tf.data.Dataset.from_tensor_slices(list(range(N))).map(load).map(twice).cache().batch(BATCH)
    model = compiled(jit)
    fit(model, rows)
    return fit(model, rows)


@case
def repeated(jit):
    """Batches reach from one epoch of the data into the next, and its last rows are left out."""
    rows = numbers().shuffle(N, seed=4).repeat(EPOCHS).map(load).map(twice).batch(BATCH, drop_remainder=True)
    return fit(compiled(jit), rows.prefetch(1), epochs=1)


@case
def endless(jit):
    return fit(compiled(jit), numbers().map(load).map(twice).repeat().batch(BATCH), steps_per_epoch=9)


@case
def random(jit):
    """What is random must be drawn for all rows, in their order."""
    return fit(compiled(jit), numbers().map(load).map(twice).map(noisy).batch(BATCH))


if __name__ == "__main__":
    main()
