"""Checkpoints, saved models, graphs and event files of tf.compat.v1 are written once, by rank 0."""

import functools
import threading

import tensorflow as tf

from matexrun.inject import lifecycle, patching
from matexrun.inject.keras3.writers import one_writer


def patch() -> None:
    """Patch Saver.save, the methods of SavedModel builders, write_graph, EventFileWriter, and the timer of hooks."""
    from tensorflow.python.saved_model.builder_impl import _SavedModelBuilder
    from tensorflow.python.summary.writer.event_file_writer import EventFileWriter
    from tensorflow.python.training.basic_session_run_hooks import SecondOrStepTimer

    @patching.method(tf.compat.v1.train.Saver, "save", ("sess", "save_path", "global_step"))
    def save(original, self, *args, **kwargs):
        if threading.current_thread() is not threading.main_thread():
            # The saving thread of a Supervisor, by its own clock: the others do not wait.
            return original(self, *args, **kwargs) if lifecycle.rank() == 0 else None
        lifecycle.world().barrier()  # the others may still be looking for a checkpoint to start from
        path = one_writer(functools.partial(original, self, *args, **kwargs), "Saver.save")
        path, self._last_checkpoints = lifecycle.world().broadcast_object((path, self._last_checkpoints))
        return path

    for name in ("__init__", "add_meta_graph_and_variables", "add_meta_graph", "save"):
        patching.overrides(_SavedModelBuilder, name)(_together)
    write_graph = tf.io.write_graph
    patching.check_signature(write_graph, ("graph_or_graph_def", "logdir", "name"))
    patching.everywhere(
        write_graph, functools.wraps(write_graph)(functools.partial(_together, write_graph)), "tensorflow"
    )
    if lifecycle.rank() != 0:
        _silence(EventFileWriter)

    @patching.method(SecondOrStepTimer, "should_trigger_for_step", ("step",))
    def should_trigger_for_step(original, self, step):
        """By the clock of rank 0: what it triggers may be done by all ranks together."""
        decision = original(self, step)
        return decision if self._every_secs is None else lifecycle.world().broadcast_object(decision)


def _together(function, *args, **kwargs):
    result = one_writer(functools.partial(function, *args, **kwargs), function.__qualname__)
    return None if function.__name__ == "__init__" else lifecycle.world().broadcast_object(result)


def _silence(writer) -> None:
    """Make the writer of event files, through which FileWriter writes, write nothing."""

    @patching.method(writer, "__init__", ("logdir",))
    def init(original, self, logdir, *args, **kwargs):
        self._logdir = str(logdir)

    for name in ("reopen", "add_event", "flush", "close"):
        patching.method(writer, name, ())(lambda original, self, *args: None)
