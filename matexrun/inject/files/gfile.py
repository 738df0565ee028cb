"""tf.io.gfile, and whatever TensorFlow's Python code reads and writes through it, led through the rank's role.

All of that uses one module of TensorFlow's C++ code, tensorflow.python.lib.io._pywrap_file_io, which file_io.py knows
by name; there, `Files` stands in for it (TF 2.18 to 2.21). Remote paths (gs://, hdfs://) are passed on.
"""

import contextlib
import errno
import os
import re
import shutil

import tensorflow as tf

from matexrun.errors import PatchError
from matexrun.inject.files import layers, patches
from matexrun.inject.files.view import View

_ERRORS = {
    errno.ENOENT: tf.errors.NotFoundError,
    errno.EEXIST: tf.errors.AlreadyExistsError,
    errno.EACCES: tf.errors.PermissionDeniedError,
    errno.ENOSPC: tf.errors.ResourceExhaustedError,
}


def patch(role) -> None:
    """Put `Files` in the place of _pywrap_file_io."""
    from tensorflow.python.lib.io import file_io

    missing = [name for name in vars(Files) if name[0].isupper() and not hasattr(file_io._pywrap_file_io, name)]
    if missing:
        raise PatchError(f"tensorflow.python.lib.io._pywrap_file_io has no {missing}; tried on TensorFlow 2.18 to 2.21")
    file_io._pywrap_file_io = Files(file_io._pywrap_file_io, role)


def local(path) -> str | None:
    """The path of a local file as a str, None where it is to be passed on."""
    if patches.passing() or not isinstance(path, (str, bytes, os.PathLike)):
        return None
    path = os.fsdecode(path).removeprefix("file://")
    return None if "://" in path or not path else path


class Files:
    """The functions of _pywrap_file_io, under their names there."""

    def __init__(self, original, role):
        self._original, self._role = original, role

    def __getattr__(self, name):
        return getattr(self._original, name)

    def _read(self, name, path, *args):
        function = getattr(self._original, name)
        return self._call(function, path, lambda path: function(self._role.reading(path), *args), *args)

    def _call(self, function, path, ours, *args):
        """ours(path), its OSErrors as TensorFlow's; function(path, *args) where the path is to be passed on."""
        if local(path) is None:
            return function(path, *args)
        try:
            return ours(local(path))
        except OSError as error:
            kind = _ERRORS.get(error.errno, tf.errors.FailedPreconditionError)
            raise kind(None, None, f"{error.filename}; {error.strerror}") from None

    def FileExists(self, path, *args):
        return self._read("FileExists", path, *args)

    def IsDirectory(self, path, *args):
        return self._read("IsDirectory", path, *args)

    def Stat(self, path, *args):
        return self._read("Stat", path, *args)

    def BufferedInputStream(self, path, *args):
        return self._read("BufferedInputStream", path, *args)

    def GetChildren(self, path, *args):
        if not isinstance(self._role, View):
            return self._original.GetChildren(path, *args)
        return self._call(self._original.GetChildren, path, lambda path: self._role.listdir(path), *args)

    def WritableFile(self, path, mode, *args):
        keep = b"w" not in os.fsencode(mode)

        def open_(path):
            return self._original.WritableFile(self._role.writing(path, keep=keep), mode, *args)

        return self._call(self._original.WritableFile, path, open_, mode, *args)

    def DeleteFile(self, path, *args):
        return self._call(self._original.DeleteFile, path, self._role.remove, *args)

    def CreateDir(self, path, *args):
        def make(path):
            with contextlib.suppress(FileExistsError):  # as there
                self._role.mkdir(path)

        return self._call(self._original.CreateDir, path, make, *args)

    def RecursivelyCreateDir(self, path, *args):
        def make(path):
            os.makedirs(path, exist_ok=True)

        return self._call(self._original.RecursivelyCreateDir, path, make, *args)

    def DeleteRecursively(self, path, *args):
        return self._call(self._original.DeleteRecursively, path, shutil.rmtree, *args)

    def CopyFile(self, source, path, overwrite, *args):
        def copy(path):
            self._check(path, overwrite)
            new = self._role.writing(path, keep=False)
            old = self._role.reading(source) if local(source) else source
            self._original.CopyFile(old, new, True, *args)

        return self._call(lambda path: self._original.CopyFile(source, path, overwrite, *args), path, copy)

    def RenameFile(self, source, path, overwrite, *args):
        def rename(path):
            self._check(path, overwrite)
            self._role.rename(local(source), path)

        return self._call(lambda path: self._original.RenameFile(source, path, overwrite, *args), path, rename)

    @staticmethod
    def _check(path, overwrite) -> None:
        if not overwrite and os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def GetMatchingFiles(self, pattern, *args):
        if local(pattern) is None or not isinstance(self._role, View):
            return self._original.GetMatchingFiles(pattern, *args)
        return matching(self._role, local(pattern), lambda pattern: self._original.GetMatchingFiles(pattern, *args))


def matching(role: View, pattern: str, find) -> list:
    """What `find(pattern)` (a list of str or bytes) gives in this rank's view."""
    absolute = role.absolute(re.sub(r"/+$", "", pattern))
    prefix = absolute[: len(absolute) - len(pattern)] if absolute.endswith(pattern) and pattern[0] != "/" else ""
    found = {os.fsdecode(name) for name in find(absolute)}
    for layer in (role.own, role.before):
        if layers.mode_of(layer.root) is not None:
            found |= {os.fsdecode(name)[len(layer.root) :] for name in find(layer.root + absolute)}
    seen = [name for name in sorted(found) if layers.WHITEOUT not in name and role.find(name).real is not None]
    return [name[len(prefix) :] if prefix else name for name in seen]
