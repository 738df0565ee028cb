"""The files as a rank other than 0 sees them: as they were when the job began, and what this rank has done since.

Three layers over each other: what this rank has written (`own`, a scratch folder that ends with the job), what rank 0
has changed, as it was before (`before`, see record.py), and the real file system, which this rank never changes. So no
rank waits for another, and a rank that has fallen behind rank 0 finds what it would have found alone.
"""

import errno
import functools
import os
import posix
import stat
from typing import NamedTuple

from matexrun.inject.files import layers
from matexrun.inject.files.layers import Layer


class Found(NamedTuple):
    """Where `path` (canonical) is really: `real` is None where it is not there. place: "own", "before", "base" (the
    real file system), "private" (outside of all layers). known: a layer mentions it. mode: st_mode, 0 if unknown."""

    path: str
    real: str | None
    place: str
    known: bool = True
    mode: int = 0

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


class View:
    """private: folders (canonical) that are left alone. written: called with each path that this rank first writes."""

    def __init__(self, own: Layer, before: Layer, private: tuple[str, ...], written=lambda path: None):
        self.own, self.before, self.private = own, before, private
        self._layers = (("own", own), ("before", before))
        # As a rank sees the real file system as it was, it need not ask twice where a folder is.
        self._real_folder = functools.lru_cache(maxsize=10000)(layers.real_folder)
        self._inside_private = tuple(f"{folder}/" for folder in private)
        self._written = written
        self._folder = None  # the working folder, where it is not the kernel's

    def absolute(self, path) -> str:
        """A path as scripts give it (str, bytes, PathLike), absolute and normalised."""
        path = os.fsdecode(path)
        return layers.normal(path if path.startswith("/") else os.path.join(self._folder or posix.getcwd(), path))

    def find(self, path, follow: bool = True) -> Found:
        """Where the file or folder of this name is, for this rank. Raises OSError for a loop of symlinks."""
        path = self.absolute(path)
        for _ in range(40):
            found = self._find(path, follow, self._layers)
            if isinstance(found, Found):
                return found
            path = found
        raise layers.error(errno.ELOOP, path)

    def _find(self, path: str, follow: bool, stack) -> Found | str:
        """One look through `stack`; a str is the path to look for instead."""
        if self._is_private(path):
            return Found(path, path, "private", mode=layers.mode_of(path) or 0)
        for i, (place, layer) in enumerate(stack):
            seen = layer.look(path, follow)
            if seen is None:
                continue
            if seen.kind == "link":
                return seen.path
            if seen.kind == "gone":
                return Found(path, None, place)
            if seen.kind == "here":
                return Found(path, seen.path, place, mode=seen.mode)
            below = self._find(layers.canonical(seen.path, follow, self._real_folder), follow, stack[i + 1 :])
            return below if isinstance(below, str) else Found(path, below.real, "base", mode=below.mode)
        canonical = layers.canonical(path, follow, self._real_folder)
        if canonical != path:
            return canonical
        mode = layers.mode_of(path)
        # Rank 0 records before it changes: only if it has not recorded anything meanwhile, this was there before.
        if mode is not None and ("before", self.before) in stack and self.before.look(path, follow) is not None:
            return path
        return Found(path, None if mode is None else path, "base", known=False, mode=mode or 0)

    def _is_private(self, path: str) -> bool:
        return path.startswith(self._inside_private) or path in self.private

    # What functions of `os` and libraries ask for. Arguments are paths as scripts give them; errors are those of `os`.

    def reading(self, path, follow: bool = True):
        """The real path of an existing file or folder; `path` itself where it is the real one."""
        if not self.own.exists() and not self.before.exists():
            return path
        found = self.find(path, follow)
        if not found.known or found.place == "private":
            return path if self._folder is None else found.path
        if found.real is None:
            raise layers.error(errno.ENOENT, path)
        return found.real

    def writing(self, path, *, keep: bool, create: bool = True, exclusive: bool = False):
        """The path of a scratch file to be written in place of `path`. keep: with its contents.  create: it need not
        exist.  exclusive: it must not."""
        found = self.find(path, not exclusive)
        if found.place == "private":
            return path if self._folder is None else found.path
        if found.real is None and not create:
            raise layers.error(errno.ENOENT, path)
        if found.real is not None:
            if exclusive:
                raise layers.error(errno.EEXIST, path)
            if found.place == "own" or not stat.S_ISREG(found.mode):
                return found.real  # a folder is the caller's error, a pipe or device is no file
        self._check_parent(found.path, path)
        scratch = self.own.place(found.path) if found.real is None else self._take(found, keep)
        self._written(found.path)
        return scratch

    def changing(self, path):
        """The path of a copy whose attributes or length can be changed."""
        found = self.find(path)
        if found.real is None or not found.is_folder or found.place in ("own", "private"):
            return self.writing(path, keep=True, create=False)
        return self._take(found, keep=True)

    def is_plain(self, path) -> bool:
        """Whether no layer mentions `path`, so that functions of `os` can take it as it is."""
        found = self.find(path)
        return self._folder is None and (not found.known or found.place == "private")

    def remove(self, path) -> None:
        found = self._existing(path)
        if found.is_folder:
            raise layers.error(errno.EISDIR, path)
        if found.place == "private":
            return posix.unlink(found.path)
        self.own.hide(found.path)

    def rmdir(self, path) -> None:
        found = self._existing(path)
        if found.place == "private":
            return posix.rmdir(found.path)
        if not found.is_folder:
            raise layers.error(errno.ENOTDIR, path)
        if self.listdir(path):
            raise layers.error(errno.ENOTEMPTY, path)
        self.own.hide(found.path)

    def mkdir(self, path, mode: int = 0o777) -> None:
        found = self.find(path, False)
        if found.place == "private":
            return posix.mkdir(found.path, mode)
        if found.real is not None:
            raise layers.error(errno.EEXIST, path)
        self._check_parent(found.path, path)
        posix.mkdir(self.own.place(found.path), mode | 0o700 | layers.OPAQUE)

    def folder(self, path):
        """The scratch folder to write into instead of `path`, which need not be there."""
        found = self.find(path)
        return path if found.place == "private" else self.own.folder(found.path)

    def symlink(self, target, path) -> None:
        found = self.find(path, False)
        if found.place != "private" and found.real is not None:
            raise layers.error(errno.EEXIST, path)
        if found.place != "private":
            self._check_parent(found.path, path)
        target = os.fsdecode(target)
        target = "/" + target.lstrip("/") if target.startswith("/") else target  # two slashes mean something here
        posix.symlink(target, found.path if found.place == "private" else self.own.place(found.path))

    def link(self, source, path) -> None:
        old, new = self._existing(source), self.find(path, False)
        if new.real is not None and layers.mode_of(new.real) is not None:
            raise layers.error(errno.EEXIST, path)
        self._check_parent(new.path, path)
        named = old.path if old.place == "private" else self._take(old, keep=True)
        posix.link(named, new.path if new.place == "private" else self.own.place(new.path), follow_symlinks=False)

    def rename(self, source, path) -> None:
        old, new = self._existing(source), self.find(path, False)
        there = new.real if new.real is None else layers.mode_of(new.real)
        if there is not None and stat.S_ISDIR(there) != old.is_folder:
            raise layers.error(errno.ENOTDIR if old.is_folder else errno.EISDIR, path)
        if there is not None and old.is_folder and new.path != old.path and self.listdir(path):
            raise layers.error(errno.ENOTEMPTY, path)
        if old.is_folder and new.path.startswith(old.path + "/"):
            raise layers.error(errno.EINVAL, path)
        if new.path == old.path:
            return
        self._check_parent(new.path, path)
        moved = old.path if old.place == "private" else self._take_tree(old.path)
        target = new.path if new.place == "private" else self.own.place(new.path)
        if old.is_folder:
            layers.delete(target)
        posix.rename(moved, target)
        if old.place != "private":
            self.own.hide(old.path)
        if new.place != "private":
            if old.is_folder:
                posix.chmod(target, stat.S_IMODE(posix.stat(target).st_mode) | layers.OPAQUE)
            self._written(new.path)

    def listdir(self, path=".") -> list[str]:
        found = self.find(path)
        if found.real is None:
            raise layers.error(errno.ENOENT, path)
        if not found.known or not found.is_folder:
            return posix.listdir(found.real)  # raises ENOTDIR for a file
        if found.place == "private":
            return posix.listdir(found.path)
        return sorted(self._names(found.path, self._layers))

    def _names(self, path: str, stack) -> set[str]:
        for i, (_, layer) in enumerate(stack):
            seen = layer.look(path, True)
            if seen is None:
                continue
            if seen.kind == "through":
                return self._names(seen.path, stack[i + 1 :])
            if seen.kind != "here" or not stat.S_ISDIR(seen.mode):
                return set()
            here, hidden = layers.entries(seen.path)
            return here if seen.opaque else here | (self._names(path, stack[i + 1 :]) - hidden)
        try:
            return set(posix.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def chdir(self, path) -> None:
        found = self.find(path)
        if found.real is None:
            raise layers.error(errno.ENOENT, path)
        exists = layers.mode_of(found.path) is not None
        posix.chdir(found.path if exists else found.real)
        self._folder = None if exists else found.path

    def getcwd(self) -> str:
        return self._folder or posix.getcwd()

    def adopt(self, path: str, target: str, kind: str | None) -> None:
        """Let `path` be what rank 0 has written for all as `target`: a real "file", a "folder", or None, nothing."""
        found = self.find(path, False)
        if kind == "folder":
            if found.real is None:
                self.own.folder(found.path)
        elif kind is None:
            if found.real is not None and found.place != "private":
                self.own.hide(found.path)
        elif found.known or found.path != target:
            self.own.share(found.path, target)

    def _existing(self, path) -> Found:
        found = self.find(path, False)
        if found.real is None and not (found.place == "base" and found.known):
            # Known, but not there: a large file that rank 0 has meanwhile removed, which alone would still be here.
            raise layers.error(errno.ENOENT, path)
        if found.place == "private" and not found.mode:
            raise layers.error(errno.ENOENT, path)
        return found

    def _check_parent(self, canonical: str, path) -> None:
        parent = self.find(os.path.dirname(canonical))
        if parent.real is None or (parent.place == "private" and not parent.mode):
            raise layers.error(errno.ENOENT, path)
        if not parent.is_folder:
            raise layers.error(errno.ENOTDIR, path)

    def _take(self, found: Found, keep: bool) -> str:
        """Bring what was found into the scratch layer: with its contents, or (keep=False) an empty file instead. Of a
        folder, only itself."""
        if found.place == "own":
            return found.real
        if found.is_folder:
            return self.own.folder(found.path)
        if keep:
            self.own.add(found.path, found.real)
            return self.own.look(found.path, False).path
        scratch = self.own.place(found.path)
        layers.delete(scratch)
        posix.close(posix.open(scratch, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, stat.S_IMODE(found.mode) | 0o600))
        return scratch

    def _take_tree(self, path: str) -> str:
        """Bring a file or a whole folder into the scratch layer; returns where it is."""
        found = self.find(path, False)
        scratch = self._take(found, keep=True)
        if found.is_folder:
            for name in self.listdir(path):
                self._take_tree(f"{path}/{name}")
        return scratch
