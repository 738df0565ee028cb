"""usage: python stopping.py OUT: training that one process alone decides to stop, by a file that only one can make."""

import json
import os
import sys

import keras
from cases import BATCH, adam, fit, mlp, table


class StopOnce(keras.callbacks.Callback):
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


if __name__ == "__main__":
    keras.utils.set_random_seed(3)
    out = sys.argv[1]
    stop = StopOnce(os.path.join(out, "stop"))
    model = mlp()
    model.compile(adam(), "mse", jit_compile=False)
    results = fit(model, *table(), batch_size=BATCH, epochs=40, callbacks=[stop])
    results |= {"steps": stop.steps, "decided": stop.decided, "updates": int(model.optimizer.iterations)}
    with open(os.path.join(out, f"{os.getpid()}.json"), "w") as file:
        json.dump({"stopping": results}, file)
