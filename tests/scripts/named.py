"""Named cases of a script, their main(), and the small data that they share; for scripts of Keras 3 and of tf_keras.

usage of each script: python SCRIPT OUT [--jit on|off|auto] [--only NAME ...]

Every process writes OUT/<pid>.json: {case: {"history": ..., "weights": ..., "rows": ..., ...} or {"error": text}}.
"""

import argparse
import json
import os
import traceback

import numpy as np

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


def main(keras):
    """Run the cases, each in a fresh session of this Keras with the same seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--jit", choices=["on", "off", "auto"], default="off")
    parser.add_argument("--only", nargs="*", default=None)
    args = parser.parse_args()
    jit = {"on": True, "off": False, "auto": "auto"}[args.jit]

    def run(name):
        keras.backend.clear_session()
        keras.utils.set_random_seed(3)
        return CASES[name](jit)

    write_results(args.out, CASES if args.only is None else args.only, run)


def write_results(out, names, run):
    """Write what run(name) returns, or its error, for each of the names."""
    path, results = os.path.join(out, f"{os.getpid()}.json"), {}
    for name in names:
        try:
            results[name] = run(name)
        except Exception:
            results[name] = {"error": traceback.format_exc()}
        with open(path, "w") as file:  # after each case, so that those before a crash are there
            json.dump(results, file, default=float)
