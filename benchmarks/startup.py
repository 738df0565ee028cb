"""Time from the command to the end of the first training step: `python train.py` against `matexrun -n N train.py`.

    python benchmarks/startup.py [--ranks 1 2] [--rounds 5]

The script is a small Keras model, so that nearly all of the time is the start of Python, TensorFlow and MPI. Commands
take turns, so that a noisy machine disturbs all alike. Printed are medians, ranges and the ratio to `python train.py`.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

TRAIN = """
import time
import keras
import numpy as np

class FirstStep(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            print("first step at", time.monotonic(), flush=True)  # one clock for all processes of a machine

model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy")
x, y = np.ones((256, 64), "float32"), np.zeros(256, "int64")
model.fit(x, y, batch_size=64, verbose=0, callbacks=[FirstStep()])
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "train.py")
        script.write_text(TRAIN)
        commands = {"python train.py": [sys.executable, str(script)]}
        for ranks in arguments.ranks:
            launcher = [sys.executable, "-m", "matexrun", "-n", str(ranks), "--log-dir", f"{folder}/logs-{ranks}"]
            commands[f"matexrun -n {ranks} train.py"] = [*launcher, str(script)]
        times: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(arguments.rounds + 1):
            for name, command in commands.items():
                seconds = first_step(command, folder)
                if number:  # the first round fills the page cache
                    times[name].append(seconds)
    reference = statistics.median(times["python train.py"])
    for name, values in times.items():
        median = statistics.median(values)
        spread = f"{min(values):.2f} .. {max(values):.2f}"
        print(f"{name:28s}{median:7.2f} s   ({spread})   {median / reference:5.2f} x   {median - reference:+.2f} s")
    return 0


def first_step(command: list[str], folder: str) -> float:
    """Seconds from the start of `command` to the end of its first training step. Raises where the command fails."""
    root = str(pathlib.Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    start = time.monotonic()
    process = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    lines = [line for line in process.stdout.splitlines() if line.startswith("first step at ")]
    if process.returncode or not lines:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{process.stdout}{process.stderr}")
    return float(lines[0].split()[-1]) - start


if __name__ == "__main__":
    sys.exit(main())
