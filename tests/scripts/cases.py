"""What the scripts beside this file share: small data with an id column, small models, and a main() for named cases.

usage of each script: python SCRIPT OUT [--jit on|off|auto] [--only NAME ...]

Every process writes OUT/<pid>.json: {case: {"history": ..., "weights": ..., "rows": ..., ...} or {"error": text}}.
"""

import argparse
import json
import os
import traceback

import keras
import numpy as np
from rows import Rows

CASES = {}
FEATURES = 5
EPOCHS = 2
BATCH = 7  # neither 2 nor 3 ranks divide it
N = 50  # 7 batches of 7, and one last row for all ranks together


def case(function):
    """Register function(jit) -> results under its name; jit is what model.compile takes as jit_compile."""
    CASES[function.__name__] = function
    return function


def table(n=N, outputs=1, seed=7):
    """x float32 [n, FEATURES + 1], whose last column is the row's id (1..n), and y float32 [n, outputs]."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, FEATURES))
    y = np.tanh(x @ rng.normal(size=(FEATURES, outputs))) + rng.normal(scale=0.1, size=(n, outputs))
    return np.column_stack([x, np.arange(1, n + 1)]).astype("float32"), y.astype("float32")


def labels(n=N, classes=3, seed=7):
    """x as in table(), and y int32 [n] in 0..classes-1."""
    x, y = table(n, classes, seed)
    return x, y.argmax(1).astype("int32")


def mlp(outputs=1, activation=None, **last):
    """[rows, FEATURES + 1] -> [rows, outputs]; smooth, so that rounding does not grow."""
    return keras.Sequential(
        [
            keras.Input((FEATURES + 1,)),
            Rows(name="rows"),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(outputs, activation=activation, **last),
        ]
    )


def adam():
    """Its epsilon is large, because dividing by a gradient near zero magnifies that gradient's rounding."""
    return keras.optimizers.Adam(0.01, epsilon=1e-3)


def fit(model, *data, **options):
    """model.fit without output; the outcome of it as a dict for JSON."""
    options = {"epochs": EPOCHS, "verbose": 0, **options}
    history = model.fit(*data, **options)
    return outcome(model, history=history.history)


def outcome(model, **more):
    """The weights of `model`, the rows it was called with since the last time, and `more`."""
    return {
        "weights": [keras.ops.convert_to_numpy(weight).tolist() for weight in model.trainable_variables],
        "rows": model.get_layer("rows").take(),
        **more,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--jit", choices=["on", "off", "auto"], default="off")
    parser.add_argument("--only", nargs="*", default=None)
    args = parser.parse_args()
    jit = {"on": True, "off": False, "auto": "auto"}[args.jit]
    path = os.path.join(args.out, f"{os.getpid()}.json")
    results = {}
    for name in CASES if args.only is None else args.only:
        keras.utils.clear_session()
        keras.utils.set_random_seed(3)
        try:
            results[name] = CASES[name](jit)
        except Exception:
            results[name] = {"error": traceback.format_exc()}
        with open(path, "w") as file:  # after each case, so that those before a crash are there
            json.dump(results, file, default=float)
