"""Import hooks: what happens in a rank when the script imports TensorFlow, Keras or NumPy.

wrapt calls a hook right after the module was executed, and forgets it first: when a hook fails and the script catches
the ImportError, a second import would succeed unpatched. So a hook that fails ends the process.
"""

import functools
import os

import wrapt

from matexrun.errors import MatexrunError, UsageError
from matexrun.inject import lifecycle


def register() -> None:
    """Arrange for the patches to be applied when their modules are imported."""
    for module, hook in (
        ("numpy", _numpy),
        ("tensorflow", _tensorflow),
        ("keras", _keras),
        ("tf_keras", _tf_keras),
        ("horovod", _horovod),
    ):
        wrapt.register_post_import_hook(_fatal(hook), module)


def _fatal(hook):
    @functools.wraps(hook)
    def run(module):
        if os.getpid() != lifecycle.pid():
            return  # a forked child of a rank is not a rank
        try:
            hook(module)
        except Exception as error:
            lifecycle.die(error, traceback=not isinstance(error, MatexrunError))

    return run


def _numpy(module):
    from matexrun.inject import randomness

    randomness.seed_numpy(module, lifecycle.job().seed)


def _tensorflow(module):
    from matexrun.inject import tensorflow

    tensorflow.check_version(module)
    lifecycle.claim()
    tensorflow.patch(module)
    _patch_keras("tensorflow")


def _keras(module):
    if module.backend.backend() != "tensorflow":
        raise UsageError(
            f"Keras runs on the backend {module.backend.backend()!r}, but matexrun distributes TensorFlow: "
            "set KERAS_BACKEND=tensorflow"
        )
    _patch_keras("keras")


_ready = set()


def _tf_keras(module):
    _patch_keras("tf_keras")


def _patch_keras(imported: str) -> None:
    """TensorFlow and a Keras import each other; only when both are whole can that Keras be patched."""
    _ready.add(imported)
    if imported != "tf_keras" and {"tensorflow", "keras"} <= _ready:
        from matexrun.inject import keras3

        keras3.patch()
    if imported != "keras" and {"tensorflow", "tf_keras"} <= _ready:
        from matexrun.inject import tf_keras

        tf_keras.patch()


def _horovod(module):
    raise UsageError(
        "the script imports horovod, and matexrun already makes it distributed: delete hvd.init(), the "
        "DistributedOptimizer and the broadcast callbacks, and keep the rest"
    )
