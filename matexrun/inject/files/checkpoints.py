"""tf.train.Checkpoint, CheckpointManager and SavedModels: written by rank 0 for all, read by each rank.

Before they are written, what is averaged over the ranks (BatchNormalization's moving statistics) is, in every Keras
model among the objects. Writing inside a tf.function is no collective: there each rank writes for itself, as with other
files.
"""

import copy
import functools
import glob
import importlib
import os
import sys

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint
from tensorflow.python.saved_model import load, save
from tensorflow.python.trackable import base
from tensorflow.python.training import py_checkpoint_reader

from matexrun.inject import patching
from matexrun.inject.files import gfile, tf_files, together
from matexrun.inject.files.together import one_writer
from matexrun.inject.files.view import View

REAL = "/proc/self/root"  # before a path: it is one of the real file system, and not to be looked for again


def patch(role) -> None:
    """Patch Checkpoint._write, through which `write`, `save` and CheckpointManager go, saved_model.save and, on ranks
    other than 0, what reads them (TF 2.18 to 2.21)."""

    @patching.method(checkpoint.Checkpoint, "_write", ("file_prefix", "options"))
    def write(original, self, file_prefix, options=None):
        return _write(role, original, self, file_prefix, options)

    original = save.save_and_return_nodes
    patching.check_signature(original, ("obj", "export_dir"))

    @functools.wraps(original)
    def save_and_return_nodes(obj, export_dir, *args, **kwargs):
        if not together.writing():
            settle(obj)
        write = functools.partial(original, obj, export_dir, *args, **kwargs)
        return one_writer(write, "saved_model.save", export_dir)

    patching.everywhere(original, save_and_return_nodes, "tensorflow")
    if isinstance(role, View):
        _patch_readers(role)


def _patch_readers(role) -> None:
    @patching.method(checkpoint.TrackableSaver, "restore", ("save_path",))
    def restore(original, self, save_path, *args, **kwargs):
        return original(self, prefix(role, save_path), *args, **kwargs)

    @patching.method(tf.compat.v1.train.Saver, "restore", ("sess", "save_path"))
    def restore_v1(original, self, sess, save_path):
        return original(self, sess, prefix(role, save_path))

    for module, name, argument, find in (
        (py_checkpoint_reader, "NewCheckpointReader", "filepattern", prefix),
        (load, "load_partial", "export_dir", _saved_model),
    ):
        tf_files.replace_argument(module, name, argument, functools.partial(find, role))


def _write(role, original, self, file_prefix, options):
    """Checkpoint._write on all ranks. Returns what it returns: the path."""
    path = gfile.local(file_prefix)
    if path is None or not tf.executing_eagerly():
        if path is not None:
            file_prefix = os.path.join(role.folder(os.path.dirname(path) or "."), os.path.basename(path))
        return original(self, file_prefix, options)
    if options is not None and options.experimental_enable_async_checkpoint:
        # Its thread would write while the ranks do other things together.
        options = copy.copy(options)
        options.experimental_enable_async_checkpoint = False
    if together.writing():
        return _written(lambda: original(self, file_prefix, options), path)
    settle(self)
    written = _written(lambda: original(self, file_prefix, options), path)
    if written is not None:
        return written
    # On the other ranks: what the manager notes of its checkpoints.
    checkpoint._execute_callbacks((options and options.experimental_write_callbacks) or (), path)
    return path


def _written(write, path: str):
    """one_writer for the files of one checkpoint."""
    name = f"{glob.escape(os.path.basename(path))}.[id]*"  # .index, and .data-00000-of-00001 and so on
    return one_writer(write, "Checkpoint", os.path.dirname(path) or ".", functools.partial(made, name))


def made(pattern: str, folder: str) -> list[str]:
    """The folder of a checkpoint, and its files in it."""
    return [folder, *glob.glob(os.path.join(glob.escape(folder), pattern))]


def prefix(role: View, path):
    """The real prefix of a checkpoint's files, for TensorFlow to read."""
    name = gfile.local(path)
    if name is None:
        return path
    real = tf_files.readable(role, f"{name}.index")
    return path if real == f"{name}.index" else REAL + real.removesuffix(".index")


def _saved_model(role: View, path):
    """The real folder of a SavedModel, for TensorFlow to read."""
    name = gfile.local(path)
    if name is None:
        return path
    for file in ("saved_model.pb", "saved_model.pbtxt", "saved_model.cpb"):
        real = tf_files.readable(role, os.path.join(name, file))
        if real != os.path.join(name, file):
            return REAL + os.path.dirname(real)
    return path


def settle(root) -> None:
    """Make Keras models among the objects below `root` (a Trackable) have equal weights on all ranks. Collective."""
    if not isinstance(root, base.Trackable):
        return
    objects = tf.train.TrackableView(root).descendants()
    for package, ours in (("keras", "keras3"), ("tf_keras", "tf_keras")):
        if package in sys.modules:
            for model in objects:
                if isinstance(model, sys.modules[package].Model) and model.built:
                    importlib.import_module(f"matexrun.inject.{ours}.state").settle(model)
