"""What each process decides by itself: when training stops, the first weights, and, at last, the model's shape.

The last one is tried outside of the cases, so that nothing catches its error.
"""

import os
import sys

import keras
import numpy as np
from cases import BATCH, adam, case, fit, main, mlp, table

mine = np.random.default_rng(os.getpid())


def fitted(model, **options):
    model.compile(adam(), "mse", jit_compile=False)
    return fit(model, *table(), batch_size=BATCH, **options)


class StopOnce(keras.callbacks.Callback):
    """In the first process that gets to the 11th step, alone."""

    def __init__(self, path):
        super().__init__()
        self.path, self.steps, self.decided = path, 0, False

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == 11:
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            self.decided = self.model.stop_training = True


@case
def stopping(jit):
    stop, model = StopOnce(os.path.join(sys.argv[1], "stop")), mlp()
    results = fitted(model, epochs=40, callbacks=[stop])
    return {**results, "steps": stop.steps, "decided": stop.decided, "updates": int(model.optimizer.iterations)}


def values(model):
    return [weight.numpy().tolist() for weight in model.trainable_variables]


@case
def own_weights(jit):
    model, start = mlp(), []
    for weight in model.trainable_variables:
        weight.assign(mine.normal(size=weight.shape))
    before = values(model)
    note = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: start.extend(values(model)))
    return {"before": before, **fitted(model, callbacks=[note]), "start": start}


if __name__ == "__main__":
    main()
    model = mlp()
    model.add(keras.layers.Dense(1 + os.getpid() % 1000))
    fitted(model)
