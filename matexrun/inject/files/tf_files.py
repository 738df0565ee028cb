"""Files that TensorFlow's own operations read and write: records, images, caches of tf.data, event files, profiles.

Their paths are tensors. Where a path is known when an operation is created, it is replaced by the one that the rank's
role gives; where it is only known when the operation runs (a map over file names), and this rank has scratch copies of
files, it is looked up then. Tried on TF 2.18 to 2.21.
"""

import functools
import inspect
import os
import posix
import re
import stat

import tensorflow as tf

from matexrun.errors import PatchError
from matexrun.inject import patching
from matexrun.inject.files import gfile, layers
from matexrun.inject.files.view import View


def patch(role) -> None:
    """Apply all patches of this file."""
    from tensorflow.python.data.experimental.ops import readers as csv_readers
    from tensorflow.python.data.ops import cache_op, dataset_ops, load_op, readers, save_op, snapshot_op
    from tensorflow.python.lib.io import tf_record
    from tensorflow.python.ops import gen_io_ops, gen_summary_ops
    from tensorflow.python.profiler import profiler_v2
    from tensorflow.python.summary.writer import event_file_writer

    gfile.patch(role)
    write = _if_known(lambda path: role.writing(path, keep=False))
    into = _if_known(role.folder)
    cache = _if_known(functools.partial(_cache, role))
    for owner, name, change in (
        (tf_record.TFRecordWriter, "path", write),
        (cache_op.CacheDataset, "filename", cache),
        (event_file_writer.EventFileWriter, "logdir", into),
    ):
        replace_argument(owner, "__init__", name, change)
    replace_argument(gen_io_ops, "write_file", "filename", write)
    replace_argument(gen_summary_ops, "create_summary_file_writer", "logdir", into)
    replace_argument(profiler_v2, "start", "logdir", into)
    for module, name in ((save_op, "_save"), (snapshot_op, "_snapshot")):
        replace_argument(module, name, "path", into)
    if isinstance(role, View):
        replace_argument(tf_record, "tf_record_iterator", "path", functools.partial(_read, role))
        replace_argument(gen_io_ops, "read_file", "filename", functools.partial(_read, role))
        replace_argument(load_op, "_load", "path", functools.partial(_read, role))
        replace_argument(csv_readers.CsvDatasetV2, "__init__", "filenames", functools.partial(_read, role))
        _patch_matching_files(role, gen_io_ops)
        _patch_record_files(role, readers, dataset_ops)


def replace_argument(owner, function: str, argument: str, change) -> None:
    """Have `owner.function` get change(value) for its argument. A function is replaced wherever TensorFlow holds it."""
    original = vars(owner)[function]
    names = list(inspect.signature(original).parameters)
    if argument not in names:
        raise PatchError(f"{original.__module__}.{original.__qualname__} has no parameter {argument!r}, but {names}")
    place = names.index(argument)

    @functools.wraps(original)
    @tf.autograph.experimental.do_not_convert
    def replacement(*args, **kwargs):
        if len(args) > place:
            args = (*args[:place], change(args[place]), *args[place + 1 :])
        elif argument in kwargs:
            kwargs[argument] = change(kwargs[argument])
        return original(*args, **kwargs)

    if isinstance(owner, type):
        setattr(owner, function, replacement)
    else:
        patching.everywhere(original, replacement, "tensorflow")


def _known(value):
    """A path, or an array of paths, as Python knows it; None where it is a tensor whose value is not known yet."""
    if isinstance(value, (str, bytes, os.PathLike)) or not tf.is_tensor(value):
        return value
    return tf.get_static_value(value)


def _map(value, change):
    """change(path) for a path, or for each of several; None for a tensor whose value is not known yet."""
    known = _known(value)
    if known is None:
        return None
    if tf.is_tensor(value):
        return tf.constant(_map(known, change), tf.string, shape=value.shape)
    if isinstance(known, (str, bytes, os.PathLike)):
        path = gfile.local(known)
        return value if path is None else change(path)
    return [_map(one, change) for one in (known.tolist() if hasattr(known, "tolist") else known)]


def _if_known(change):
    """change(path) applied to what may be a path, several, or a tensor that stays as it is."""

    def apply(value):
        mapped = _map(value, change)
        return value if mapped is None else mapped

    return apply


def _cache(role, path: str) -> str:
    """A cache that is complete is read; another one, each rank writes for itself."""
    if not isinstance(role, View):
        role.touch(f"{path}.index")
    elif not os.path.exists(f"{path}.index"):
        return os.path.join(role.folder(os.path.dirname(path) or "."), os.path.basename(path))
    return path


def _read(role, value):
    """A path, or several, for TensorFlow to read."""
    mapped = _map(value, lambda path: readable(role, path))
    if mapped is not None:
        return mapped
    folders = _scratch_folders(role)
    if not folders:
        return value
    pattern = "|".join(re.escape(name) for at in folders for name in (at, os.path.relpath(at)))
    pattern = f"({pattern})/[^/]*" + ("|[^/]*" if os.getcwd() in folders else "")

    def look(path):
        real = tf.numpy_function(lambda path: os.fsencode(readable(role, os.fsdecode(path))), [path], tf.string)
        return tf.ensure_shape(real, [])

    def one(path):
        return tf.cond(tf.strings.regex_full_match(path, pattern), lambda: look(path), lambda: path)

    return one(value) if value.shape.rank == 0 else tf.map_fn(one, value)


def readable(role: View, path: str) -> str:
    """The real path of what `path` is; `path` itself where nothing is there, for TensorFlow to say so."""
    found = role.find(path)
    return path if found.real is None or not found.known else found.real


def _scratch_folders(role: View) -> list[str]:
    """The folders in which this rank has files of its own."""
    folders = []

    def walk(at: str, path: str) -> None:
        for name in posix.listdir(at):
            mode = layers.mode_of(f"{at}/{name}")
            if stat.S_ISDIR(mode or 0):
                walk(f"{at}/{name}", f"{path}/{name}")
            elif not name.startswith(layers.WHITEOUT) and path not in folders:
                folders.append(path)

    if layers.mode_of(role.own.root) is not None:
        walk(role.own.root, "")
    return folders


def _patch_matching_files(role, gen_io_ops) -> None:
    original = gen_io_ops.matching_files
    patching.check_signature(original, ("pattern",))

    @functools.wraps(original)
    @tf.autograph.experimental.do_not_convert
    def matching_files(pattern, name=None):
        known = _known(pattern)
        if known is None or not tf.executing_eagerly():
            return original(pattern, name=name)
        patterns = [known] if isinstance(known, (str, bytes)) else tf.reshape(tf.constant(known), [-1]).numpy().tolist()
        found = set()
        for one in patterns:
            path = gfile.local(one)
            if path is None:
                found |= set(original(one).numpy().tolist())
            else:
                found |= {os.fsencode(p) for p in gfile.matching(role, path, lambda p: original(p).numpy().tolist())}
        return tf.constant(sorted(found), tf.string, shape=[len(found)])

    patching.everywhere(original, matching_files, "tensorflow")


def _patch_record_files(role, readers, dataset_ops) -> None:
    """TFRecordDataset, TextLineDataset and FixedLengthRecordDataset get their files from this function."""
    original = readers._create_or_validate_filenames_dataset
    patching.check_signature(original, ("filenames",))

    @functools.wraps(original)
    def create(filenames, name=None):
        if not isinstance(filenames, tf.data.Dataset):
            return original(_read(role, filenames), name=name)
        filenames = original(filenames, name=name)
        look = tf.autograph.experimental.do_not_convert(functools.partial(_read, role))
        return filenames.map(look) if _scratch_folders(role) else filenames

    readers._create_or_validate_filenames_dataset = create
