"""Files are written once, by rank 0, and are complete before any rank goes on; downloads happen once per node."""

import functools

from matexrun.inject import lifecycle, patching
from matexrun.inject.files import patches, together
from matexrun.inject.files.together import one_writer
from matexrun.inject.keras3 import state


def patch() -> None:
    """Patch the public ways to save a model, BackupAndRestore's bookkeeping, and get_file."""
    from keras.src.callbacks.backup_and_restore import BackupAndRestore
    from keras.src.models.model import Model
    from keras.src.saving import saving_api
    from keras.src.utils import file_utils

    for function in (saving_api.save_model, saving_api.save_weights):
        patching.check_signature(function, ("model", "filepath"))
        patching.everywhere(function, saves(function, state.settle), "keras")

    @patching.method(Model, "export", ("filepath",))
    def export(original, self, *args, **kwargs):
        return saves(original, state.settle)(self, *args, **kwargs)

    @patching.method(BackupAndRestore, "_save_model", ())
    def back_up(original, self):
        saves(lambda model: original(self), state.settle)(self.model)

    @patching.method(BackupAndRestore, "on_train_end", ("logs",))
    def clean_up(original, self, logs=None):
        one_writer(functools.partial(original, self, logs), "BackupAndRestore")

    patching.check_signature(file_utils.get_file, ("fname", "origin"))
    patching.everywhere(file_utils.get_file, downloads(file_utils.get_file), "keras")


def saves(function, settle):
    """`function(model, filepath, ...)` as one that rank 0 alone calls, after `settle(model)` on all ranks.

    Without a filepath, all must be written by functions of Python.
    """

    @functools.wraps(function)
    def save(model, *args, **kwargs):
        if not together.writing() and model.built:
            settle(model)
        path = args[0] if args else kwargs.get("filepath")
        return one_writer(functools.partial(function, model, *args, **kwargs), function.__name__, path)

    return save


def downloads(function):
    @functools.wraps(function)
    def get_file(*args, **kwargs):
        """Rank 0 first, then the first rank of each node (whose disk may be its own), then the rest, from the cache."""
        world = lifecycle.world()
        turn = 0 if world.rank == 0 else 1 if world.local_rank == 0 else 2
        path = error = None
        for now in range(3):
            if now == turn:
                try:
                    with together.collected() if turn == 0 else patches.passed_on() as paths:
                        path = function(*args, **kwargs)
                except Exception as raised:
                    error = raised
            if now == 0:
                seen = world.broadcast_object(together.publish(paths) if turn == 0 else None)
                if turn > 0:
                    together.adopt((seen, None))
            failure = next(filter(None, world.allgather_object(error and f"{type(error).__name__}: {error}")), None)
            if error is not None:
                raise error
            if failure is not None:
                raise OSError(f"get_file failed on another rank: {failure}")
        return path

    return get_file
