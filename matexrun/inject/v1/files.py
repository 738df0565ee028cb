"""Checkpoints, saved models and graphs of tf.compat.v1 are written once, by rank 0."""

import functools
import os
import threading

import tensorflow as tf

from matexrun.inject import lifecycle, patching
from matexrun.inject.files import checkpoints
from matexrun.inject.files.together import one_writer

_local = threading.local()


def patch() -> None:
    """Patch Saver.save, the methods of SavedModel builders, write_graph, and the timer of hooks."""
    from tensorflow.python.saved_model.builder_impl import _SavedModelBuilder
    from tensorflow.python.training.basic_session_run_hooks import SecondOrStepTimer

    @patching.method(tf.compat.v1.train.Saver, "save", ("sess", "save_path", "global_step"))
    def save(original, self, *args, **kwargs):
        prefix = os.fspath(args[1] if len(args) > 1 else kwargs["save_path"])
        made = functools.partial(checkpoints.made, f"{os.path.basename(prefix)}*")
        path = _together(original, self, *args, path=os.path.dirname(prefix) or ".", made=made, **kwargs)
        if not getattr(_local, "writing", False) and _in_main_thread():
            self._last_checkpoints = lifecycle.world().broadcast_object(self._last_checkpoints)
        return path

    for name in ("__init__", "add_meta_graph_and_variables", "add_meta_graph", "save"):

        @patching.overrides(_SavedModelBuilder, name)
        def build(original, self, *args, **kwargs):
            path = getattr(self, "_export_dir", None) or (args[0] if args else kwargs["export_dir"])
            self._export_dir = path  # on the ranks that do not build it, too
            return _together(original, self, *args, path=path, **kwargs)

    write_graph = tf.io.write_graph
    patching.check_signature(write_graph, ("graph_or_graph_def", "logdir", "name"))

    @functools.wraps(write_graph)
    def write_graph_together(graph_or_graph_def, logdir, name, *args, **kwargs):
        path = os.path.join(logdir, name)
        return _together(write_graph, graph_or_graph_def, logdir, name, *args, path=path, **kwargs)

    patching.everywhere(write_graph, write_graph_together, "tensorflow")

    @patching.method(SecondOrStepTimer, "should_trigger_for_step", ("step",))
    def should_trigger_for_step(original, self, step):
        """By the clock of rank 0: what it triggers may be done by all ranks together."""
        decision = original(self, step)
        return decision if self._every_secs is None else lifecycle.world().broadcast_object(decision)


def _together(function, *args, path, made=None, **kwargs):
    """What `function` returns on rank 0, which alone calls it; all ranks have come here before and leave after it.

    path, made: what it writes, as for `one_writer`.
    """
    if getattr(_local, "writing", False):
        return function(*args, **kwargs)
    if not _in_main_thread():  # the saving thread of a Supervisor, by its own clock: the others do not wait
        return function(*args, **kwargs) if lifecycle.rank() == 0 else None

    def write():
        _local.writing = True
        try:
            return function(*args, **kwargs)
        finally:
            _local.writing = False

    lifecycle.world().barrier()  # the others may still be looking for a checkpoint to start from
    result = one_writer(write, function.__qualname__, path, made)
    return None if function.__name__ == "__init__" else lifecycle.world().broadcast_object(result)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
