"""Layers of files over the real file system, as container images have them: what differs from below, by absolute path.

In the folder of a layer, `<root>/a/b` stands for the path /a/b:

    a file, folder or symlink      it is there, and hides what is below; folders of several layers are merged
    a folder with the sticky bit   what is below it is hidden (an opaque folder; the bit costs no further look)
    .wh.<name>                     <name> is not there (a whiteout)
    a symlink to //target          it is the file or folder `target` of the layers below (two slashes: no user's link)

All of it lies on disk, so that forked children and other ranks see it. Only the functions of `posix` and `_io` are used
here: those of `os` are what the patches replace. Nothing of this file knows of ranks.
"""

import _io
import contextlib
import os
import posix
import stat
import threading
from typing import NamedTuple

WHITEOUT = ".wh."
OPAQUE = stat.S_ISVTX


class Seen(NamedTuple):
    """What a layer says of a path. kind: "here" (at `path`, in the layer's folder), "gone", "link" (look at `path`
    instead, in all layers) or "through" (look at `path` in the layers below). mode: st_mode of what is here.
    opaque: nothing below counts, apart from this."""

    kind: str
    path: str = ""
    mode: int = 0
    opaque: bool = False


GONE = Seen("gone")


class Layer:
    """A layer in the folder `root`, which exists from the first write on."""

    def __init__(self, root: str):
        self.root = root

    def exists(self) -> bool:
        """Whether anything was written to it."""
        return posix.access(self.root, os.F_OK)

    def look(self, path: str, follow: bool) -> Seen | None:
        """What this layer says of `path` (absolute, normalised), None where it says nothing. follow: see through a
        symlink at its end."""
        here, mode, opaque = self.root, mode_of(self.root), False
        if mode is None:
            return None
        names = _names(path)
        for i, name in enumerate(names):
            entry = f"{here}/{name}"
            mode = mode_of(entry)
            if mode is None:
                gone = opaque or mode_of(f"{here}/{WHITEOUT}{name}") is not None
                return GONE if gone else None
            last = i == len(names) - 1
            if stat.S_ISLNK(mode):
                target = posix.readlink(entry)
                if target.startswith("//"):
                    return Seen("through", "/".join((target[1:], *names[i + 1 :])))
                if follow or not last:
                    return Seen("link", normal(os.path.join("/", *names[:i], target, *names[i + 1 :])))
            elif not stat.S_ISDIR(mode) and not last:
                return GONE
            opaque = opaque or bool(mode & OPAQUE and stat.S_ISDIR(mode))
            here = entry
        return Seen("here", here, mode, opaque)

    def folder(self, path: str) -> str:
        """Where the folder `path` is in this layer: it and those above it are made, and no longer hidden."""
        here = self.root
        with contextlib.suppress(FileExistsError):
            posix.mkdir(here, 0o700)
        for name in _names(path):
            entry, whiteout = f"{here}/{name}", f"{here}/{WHITEOUT}{name}"
            mode = mode_of(entry)
            if mode is None:
                hidden = mode_of(whiteout) is not None
                with contextlib.suppress(FileExistsError):
                    posix.mkdir(entry, 0o700 | (OPAQUE if hidden else 0))
                if hidden:
                    _unlink(whiteout)
            elif stat.S_ISLNK(mode):
                self._unfold(entry)
            here = entry
        return here

    def place(self, path: str) -> str:
        """Where to put something as `path`: in a folder that is there, and no longer hidden."""
        head, name = os.path.split(path)
        here = self.folder(head)
        _unlink(f"{here}/{WHITEOUT}{name}")
        return f"{here}/{name}"

    def hide(self, path: str) -> None:
        """Make `path` not be there."""
        entry = self.place(path)
        folder, name = os.path.split(entry)
        posix.close(posix.open(f"{folder}/{WHITEOUT}{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        delete(entry)

    def share(self, path: str, target: str) -> None:
        """Make `path` be `target` of the layers below."""
        entry = self.place(path)
        temporary = _temporary(entry)
        posix.symlink("/" + target, temporary)
        mode = mode_of(entry)
        if mode is not None and stat.S_ISDIR(mode):
            delete(entry)
        posix.rename(temporary, entry)

    def add(self, path: str, source: str) -> None:
        """Put a copy of the file, folder (empty) or symlink `source` at `path`; it appears whole."""
        entry = self.place(path)
        temporary = _temporary(entry)
        copy(source, temporary)
        posix.rename(temporary, entry)

    def _unfold(self, entry: str) -> None:
        """Replace a shared folder by an opaque one that shares each of its entries."""
        target = posix.readlink(entry)[1:]
        _unlink(entry)
        posix.mkdir(entry, 0o700 | OPAQUE)
        with contextlib.suppress(FileNotFoundError):
            for name in posix.listdir(target):
                posix.symlink(f"/{target}/{name}", f"{entry}/{name}")


def entries(folder: str) -> tuple[set[str], set[str]]:
    """Of a folder in a layer: the names that are there, and those that it hides."""
    names = set(posix.listdir(folder))
    hidden = {name[len(WHITEOUT) :] for name in names if name.startswith(WHITEOUT)}
    here = {name for name in names if not name.startswith(WHITEOUT) and _leads_somewhere(f"{folder}/{name}")}
    return here, hidden


def _leads_somewhere(entry: str) -> bool:
    """Whether this entry is no shared file that has been removed since."""
    mode = mode_of(entry)
    if mode is None or not stat.S_ISLNK(mode):
        return mode is not None
    target = posix.readlink(entry)
    return not target.startswith("//") or mode_of(target) is not None


def normal(path: str) -> str:
    """Normalised, with one slash at its beginning."""
    return "/" + os.path.normpath(path).lstrip("/")


def real_folder(path: str) -> str:
    """A folder without symlinks. Raises OSError where there is none."""
    fd = posix.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return posix.readlink(f"/proc/self/fd/{fd}")
    finally:
        posix.close(fd)


def canonical(path: str, follow: bool, real_folder=real_folder) -> str:
    """`path` (absolute, normalised) without symlinks, as far as it exists, on the real file system."""
    for _ in range(40):
        head, tail = os.path.split(path)
        if not tail:
            return path
        try:
            path = os.path.join(real_folder(head), tail)
        except OSError:
            return os.path.join(canonical(head, True, real_folder), tail)
        if not follow:
            return path
        try:
            path = normal(os.path.join(os.path.dirname(path), posix.readlink(path)))
        except OSError:
            return path
    return path


def mode_of(path: str) -> int | None:
    """st_mode of `path` itself, None where nothing is there."""
    try:
        return posix.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def copy(source: str, target: str) -> None:
    """Copy a regular file with its times and mode, a symlink as one, a folder without its contents."""
    status = posix.lstat(source)
    if stat.S_ISLNK(status.st_mode):
        posix.symlink(posix.readlink(source), target)
    elif stat.S_ISDIR(status.st_mode):
        posix.mkdir(target, 0o700)
    else:
        with _io.open(source, "rb", buffering=0) as old, _io.open(target, "wb", buffering=0) as new:
            while posix.sendfile(new.fileno(), old.fileno(), None, 1 << 30):
                pass
            posix.chmod(new.fileno(), stat.S_IMODE(status.st_mode) | stat.S_IRUSR | stat.S_IWUSR)
        posix.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def delete(path: str) -> None:
    """Delete a file, symlink or tree, if it is there."""
    mode = mode_of(path)
    if mode is None:
        return
    if not stat.S_ISDIR(mode):
        return _unlink(path)
    for name in posix.listdir(path):
        delete(f"{path}/{name}")
    posix.rmdir(path)


def error(number: int, path) -> OSError:
    """The OSError that functions of `os` raise."""
    return OSError(number, os.strerror(number), os.fspath(path))


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        posix.unlink(path)


def _temporary(entry: str) -> str:
    """A name beside `entry` that no other thread or process uses, and that listings leave out."""
    folder, name = os.path.split(entry)
    return f"{folder}/{WHITEOUT}.{os.getpid()}.{threading.get_ident()}.{name[:100]}"
