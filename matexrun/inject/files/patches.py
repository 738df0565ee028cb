"""The functions of Python that open, change and look at files, led through a rank's `View` or `Recorder`.

Replaced are `open`, `io.open` and functions of `os`, by which almost all of Python's library works (pathlib, shutil,
glob, tempfile, zipfile, numpy's files); `posix` and `_io`, which are below them, stay as they are. File descriptors and
paths relative to one (`dir_fd`), are passed on. Tried on Python 3.10 to 3.13.
"""

import _io
import functools
import os
import posix
import shutil
import sys
import threading
import types

from matexrun.errors import PatchError
from matexrun.inject.files.listing import Listing
from matexrun.inject.files.view import View

_thread = threading.local()


def passing() -> bool:
    """Whether this thread's files are to be left alone just now."""
    return getattr(_thread, "passing", 0) > 0


class passed_on:
    """Within it, this thread opens and changes the files themselves."""

    def __enter__(self):
        _thread.passing = getattr(_thread, "passing", 0) + 1

    def __exit__(self, *_):
        _thread.passing -= 1


def install(role) -> None:
    """Lead all functions through `role`; those that only look, for a View alone."""
    by_name = {"mkdir": role.mkdir, "rmdir": role.rmdir, "remove": role.remove, "unlink": role.remove}
    replacements = {name: _one_path(name, change) for name, change in by_name.items()}
    by_name = {"rename": role.rename, "replace": role.rename, "symlink": role.symlink, "link": role.link}
    replacements |= {name: _two_paths(name, change) for name, change in by_name.items()}
    replacements["open"] = _os_open(role)
    replacements["truncate"] = _mapped("truncate", lambda path, follow: role.changing(path))
    for name in ("mkfifo", "mknod"):
        replacements[name] = _mapped(name, lambda path, follow: role.writing(path, keep=False, exclusive=True))
    if isinstance(role, View):
        for name in ("chmod", "chown", "lchown", "utime", "setxattr", "removexattr"):
            replacements[name] = _mapped(name, lambda path, follow: role.changing(path))
        for name in ("stat", "lstat", "statvfs", "readlink", "getxattr", "listxattr"):
            replacements[name] = _mapped(name, role.reading)
        replacements |= {"access": _access(role), "listdir": _listdir(role), "scandir": _scandir(role)}
        replacements["chdir"] = _one_path("chdir", role.chdir)
        replacements |= {"getcwd": lambda: role.getcwd(), "getcwdb": lambda: os.fsencode(role.getcwd())}
    _bind({getattr(posix, name): _named(name, function) for name, function in replacements.items()}, _open(role))
    # Not by file descriptors, which know nothing of the layers.
    if not hasattr(shutil, "_use_fd_functions"):
        raise PatchError("shutil has no _use_fd_functions; tried on Python 3.10 to 3.13")
    shutil._use_fd_functions = shutil.rmtree.avoids_symlink_attacks = False
    os.supports_follow_symlinks |= {getattr(os, name) for name in ("stat", "access", "chmod", "chown", "utime")}


def _named(name: str, replacement):
    replacement.autograph_info__ = {}  # how TensorFlow marks what AutoGraph leaves alone (TF 2.18 to 2.21)
    return functools.update_wrapper(replacement, getattr(posix, name))


# Their classes hold functions of `os` as attributes or as defaults of arguments.
_HOLDERS = ("pathlib", "glob", "tempfile")


def _bind(replacements: dict, open_) -> None:
    """Put the replacements in place of the originals, also where modules hold them under names of their own."""
    replacements[_io.open] = open_
    for name, module in list(sys.modules.items()):
        if name in ("posix", "_io"):
            continue
        _rebind(module, replacements)
        if name.partition(".")[0] in _HOLDERS:
            for cls in [value for value in vars(module).values() if isinstance(value, type)]:
                if cls.__module__ == name:
                    _rebind(cls, replacements)


def _rebind(owner, replacements: dict) -> None:
    for name, value in list(getattr(owner, "__dict__", {}).items()):
        function = value.__func__ if isinstance(value, staticmethod) else value
        if isinstance(function, types.BuiltinFunctionType) and function in replacements:
            replacement = replacements[function]
            setattr(owner, name, staticmethod(replacement) if isinstance(owner, type) else replacement)
        elif isinstance(owner, type) and isinstance(value, types.FunctionType) and value.__defaults__:
            value.__defaults__ = tuple(
                replacements.get(default, default) if isinstance(default, types.BuiltinFunctionType) else default
                for default in value.__defaults__
            )


def _open(role):
    @functools.wraps(_io.open)
    def open(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
        if isinstance(file, int) or not isinstance(mode, str) or passing():
            path = file
        elif "r" in mode and "+" not in mode:
            path = role.reading(file)
        else:
            keep = "a" in mode or "r" in mode
            path = role.writing(file, keep=keep, create="r" not in mode, exclusive="x" in mode)
        try:
            return _opened(path, file, mode, buffering, encoding, errors, newline, closefd, opener)
        except FileNotFoundError:
            if path is not file or isinstance(file, int) or passing() or (path := role.reading(file)) is file:
                raise
            # Rank 0 has just removed it, and kept it.
            return _opened(path, file, mode, buffering, encoding, errors, newline, closefd, opener)

    open.autograph_info__ = {}
    return open


def _opened(path, file, mode, buffering, encoding, errors, newline, closefd, opener):
    """_io.open of `path` by the name `file`."""
    if path is not file:
        opener = functools.partial(_open_other, opener, path)
    return _io.open(file, mode, buffering, encoding, errors, newline, closefd, opener)


def _open_other(opener, path, _, flags: int) -> int:
    return posix.open(path, flags, 0o666) if opener is None else opener(path, flags)


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_UNNAMED = os.O_TMPFILE & ~os.O_DIRECTORY


def _os_open(role):
    def open(path, flags, mode=0o777, *, dir_fd=None):
        if isinstance(path, int) or dir_fd is not None or flags & _UNNAMED or passing():
            return posix.open(path, flags, mode, dir_fd=dir_fd)
        if not flags & _WRITES:
            path = role.reading(path)
        else:
            create = bool(flags & os.O_CREAT)
            exclusive = create and bool(flags & os.O_EXCL)
            path = role.writing(path, keep=not flags & os.O_TRUNC, create=create, exclusive=exclusive)
        return posix.open(path, flags, mode)

    return open


def _mapped(name: str, find):
    """os.<name>(path, ...) with `path` replaced by find(path, follow)."""
    original = getattr(posix, name)
    follows = name not in ("lstat", "readlink", "lchown")

    def call(path, *args, follow_symlinks=True, **kwargs):
        if not (isinstance(path, int) or kwargs.get("dir_fd") is not None or passing()):
            path = find(path, follows and follow_symlinks)
        if not follow_symlinks:
            kwargs["follow_symlinks"] = False
        return original(path, *args, **kwargs)

    return call


def _one_path(name: str, change):
    original = getattr(posix, name)

    def call(path, *args, **kwargs):
        if isinstance(path, int) or kwargs.pop("dir_fd", None) is not None or passing():
            return original(path, *args, **kwargs)
        return change(path, *args, **kwargs)

    return call


def _two_paths(name: str, change):
    original = getattr(posix, name)

    def call(src, dst, *args, **kwargs):
        if passing() or any(kwargs.get(key) is not None for key in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
            return original(src, dst, *args, **kwargs)
        return change(src, dst)

    return call


def _access(role):
    access = _mapped("access", role.reading)

    def call(path, mode, **kwargs):
        try:
            return access(path, mode, **kwargs)
        except FileNotFoundError:
            return False

    return call


def _listdir(role):
    def listdir(path=None):
        if isinstance(path, int) or passing():
            return posix.listdir(path)
        names = role.listdir("." if path is None else path)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    return listdir


def _scandir(role):
    def scandir(path=None):
        if isinstance(path, int) or passing():
            return posix.scandir(path)
        path = "." if path is None else os.fspath(path)
        if role.is_plain(path):
            return posix.scandir(path)
        return Listing(path, role.listdir(path))

    return scandir
