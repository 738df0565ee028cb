"""usage: python larger_batches.py OUT TIMES WARMUP [--only NAME ...]: batches and learning rates that are multiplied.

TIMES: by what.  WARMUP: updates in which the learning rate gets there; 0: none.
"""

import sys

import keras
import numpy as np
import tensorflow as tf
from cases import BATCH, fit, main, mlp, table
from cases import case as larger_case

TIMES, WARMUP = (int(sys.argv.pop(2)) for _ in range(2))
SIZE = BATCH * TIMES


@keras.saving.register_keras_serializable("tests")
class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, rate):
        self.rate = rate

    def __call__(self, step):
        return self.rate * (1 + (TIMES - 1) * tf.minimum(tf.cast(step, tf.float32) / WARMUP, 1.0))


def rate(value):
    return value if TIMES == 1 else WarmUp(value) if WARMUP else value * TIMES


def compiled(optimizer):
    model = mlp()
    model.compile(optimizer, "mse", jit_compile=False)
    return model


@larger_case
def arrays(_):
    """With weight decay, which depends on the learning rate as well, and validation, whose batches stay."""
    x, y = table()
    optimizer = keras.optimizers.AdamW(rate(0.01), weight_decay=0.1, epsilon=1e-3)
    return fit(compiled(optimizer), x, y, batch_size=SIZE, validation_data=(x, y), validation_batch_size=20)


@larger_case
def default_batch_size(_):
    x, y = table(150)
    size = {} if TIMES == 1 else {"batch_size": 32 * TIMES}
    return fit(compiled(keras.optimizers.SGD(rate(0.05))), x, y, **size)


@larger_case
def dataset(_):
    """In a dict and a tuple; 50 rows make batches of 7 and a rest of 1."""
    x, y = table()
    model = compiled(keras.optimizers.SGD(rate(0.05), momentum=0.9))
    data = tf.data.Dataset.from_tensor_slices((x, y, np.ones(len(x)))).shuffle(50, seed=1)
    return fit(model, data.batch(SIZE))


@larger_case
def generator(_):
    """Without an end, and with the same number of updates an epoch."""
    x, y = table(6 * BATCH)

    def batches():
        while True:
            for start in range(0, len(x), SIZE):
                yield x[start : start + SIZE], y[start : start + SIZE]

    return fit(compiled(keras.optimizers.SGD(rate(0.05))), batches(), steps_per_epoch=2)


class Batches(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.x, self.y = table()

    def __len__(self):
        return -(-len(self.x) // SIZE)

    def __getitem__(self, index):
        return self.x[index * SIZE :][:SIZE], self.y[index * SIZE :][:SIZE]


@larger_case
def py_dataset(_):
    return fit(compiled(keras.optimizers.SGD(rate(0.05))), Batches(), shuffle=False)


@larger_case
def plateau(_):
    """A callback that halves the rate, and a script that sets it; without warm-up, since both need a plain number."""
    x, y = table()
    model = compiled(keras.optimizers.SGD(0.05 * TIMES))
    halve = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=10.0)
    results = fit(model, x, y, batch_size=SIZE, epochs=4, callbacks=[halve])
    rates = results["history"].pop("learning_rate")
    model.optimizer.learning_rate = 0.02 * TIMES
    again = fit(model, x, y, batch_size=SIZE)
    return {"first": results, "again": again, "rates": [one / TIMES for one in rates]}


if __name__ == "__main__":
    main()
