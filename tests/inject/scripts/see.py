"""usage: python see.py OUT [...]: what a script sees of the process that it runs in, before and after TensorFlow."""

import json
import os
import random
import subprocess
import sys


def surroundings():
    return {
        "variables": sorted(k for k in os.environ if k.startswith(("MATEXRUN_", "PMI", "OMPI_", "MPI_LOCAL"))),
        "PYTHONPATH": os.environ.get("PYTHONPATH"),
    }


def child():
    """A child process that imports TensorFlow: is it a rank?"""
    code = "import sys, tensorflow; print('mpi4py.MPI' in sys.modules, 'matexrun' in sys.modules)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


if __name__ == "__main__":
    seen = {
        "name": __name__,
        "file": __file__,
        "argv": sys.argv,
        "path": sys.path,
        "hash": hash("rank"),
        "random": random.random(),
        "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    }
    import numpy as np
    import tensorflow as tf

    seen["numpy"] = [float(np.random.rand()), float(np.random.default_rng().random())]
    seen["tensorflow"] = float(tf.random.normal([]))
    seen["after"] = surroundings()
    seen["child"] = child()
    with open(os.path.join(sys.argv[1], f"{os.getpid()}.json"), "w") as file:
        json.dump(seen, file)
