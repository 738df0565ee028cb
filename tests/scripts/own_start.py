"""usage: python own_start.py OUT weights|shape: a start that no seed decides, but each process by itself."""

import json
import os
import sys

import keras
import numpy as np
from cases import BATCH, adam, fit, mlp, table

if __name__ == "__main__":
    out, what = sys.argv[1:]
    mine = np.random.default_rng(os.getpid())
    model = mlp()
    if what == "shape":
        model.add(keras.layers.Dense(1 + os.getpid() % 1000))
    for weight in model.trainable_variables:
        weight.assign(mine.normal(size=weight.shape))
    model.compile(adam(), "mse")
    begun = {}

    def note(logs):
        begun["start"] = [weight.numpy().tolist() for weight in model.trainable_variables]

    before = [weight.numpy().tolist() for weight in model.trainable_variables]
    results = fit(model, *table(), batch_size=BATCH, callbacks=[keras.callbacks.LambdaCallback(on_train_begin=note)])
    with open(os.path.join(out, f"{os.getpid()}.json"), "w") as file:
        json.dump({"before": before, **begun, **results}, file)
