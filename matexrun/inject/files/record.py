"""Rank 0 keeps what it is about to change, so that ranks that have fallen behind still find it (see view.py).

Rank 0 reads and writes as it would alone. Before it first changes a path, the layer `before` notes what was there: a
whiteout where nothing was, else a copy. Files larger than LIMIT are only kept where that costs nothing (a hard link to
a file that is being removed); ranks that come later see such a file as rank 0 leaves it.
"""

import contextlib
import os
import posix
import stat
import threading
import time

from matexrun.inject.files import layers
from matexrun.inject.files.layers import Layer

LIMIT = 1 << 26  # bytes
GRACE = 0.005  # seconds in which ranks that have just opened a file, which is about to be overwritten, may read it
GRACES = 200  # how often, at most


class Recorder:
    """private: folders (canonical) that are not recorded. The methods have those of View as their model, and do what
    the functions of `os` do."""

    def __init__(self, before: Layer, private: tuple[str, ...]):
        self.before, self.private = before, private
        self._graces = GRACES
        self._thread = threading.local()

    def absolute(self, path) -> str:
        """A path as scripts give it (str, bytes, PathLike), absolute and normalised."""
        path = os.fsdecode(path)
        return layers.normal(path if path.startswith("/") else os.path.join(posix.getcwd(), path))

    def touch(self, path, *, follow: bool = True, removing: bool = False) -> str:
        """Keep what is at `path`, which is about to change. removing: its file will stay as it is, without this name.

        Returns the path, canonical. Never fails: the run does not depend on what is kept.
        """
        path = layers.canonical(self.absolute(path), follow)
        if any(path == folder or path.startswith(folder + "/") for folder in self.private):
            return path
        noted = getattr(self._thread, "noted", None)
        if noted is not None:
            noted.append(path)
            return path
        seen = self.before.look(path, False)
        if seen is None or seen.kind == "through":
            with contextlib.suppress(OSError):
                self._keep(path, removing)
        return path

    def _keep(self, path: str, removing: bool) -> None:
        status = None if layers.mode_of(path) is None else posix.lstat(path)
        if status is None:
            if layers.mode_of(os.path.dirname(path)) is not None:  # else nothing will come of it
                self.before.hide(path)
            return
        if stat.S_ISDIR(status.st_mode):
            self.before.folder(path)
        elif not stat.S_ISREG(status.st_mode):
            if stat.S_ISLNK(status.st_mode):
                self.before.add(path, path)
        elif not (removing and self._link(path)):
            if status.st_size > LIMIT:
                return self.before.share(path, path)
            self.before.add(path, path)
            if not removing and self._graces:
                self._graces -= 1
                time.sleep(GRACE)

    def _link(self, path: str) -> bool:
        entry = self.before.place(path)
        try:
            layers.delete(entry)
            posix.link(path, entry, follow_symlinks=False)
            return True
        except OSError:  # another file system, or one without hard links
            return False

    @contextlib.contextmanager
    def noting(self):
        """Within it, this thread's changes are not kept; yields the list of the paths that it changes."""
        self._thread.noted = noted = []
        try:
            yield noted
        finally:
            self._thread.noted = None

    def note(self, paths) -> None:
        """Add paths (canonical) to those that `noting` yields."""
        noted = getattr(self._thread, "noted", None)
        if noted is not None:
            noted.extend(paths)

    def publish(self, path: str, kind: str | None) -> None:
        """What is at `path` (canonical) now is what all ranks are to see: a "file", a "folder" or None, nothing."""
        seen = self.before.look(path, False)
        if kind == "file" and seen is not None:
            self.before.share(path, path)
        elif kind == "folder" and seen is not None and seen.kind != "here":
            self.before.folder(path)
        elif kind is None and seen is not None and seen.kind != "gone":
            self.before.hide(path)

    # What functions of `os` and libraries ask for.

    def reading(self, path, follow: bool = True):
        return path

    def writing(self, path, *, keep: bool, create: bool = True, exclusive: bool = False):
        self.touch(path, follow=not exclusive)
        return path

    def changing(self, path):
        self.touch(path)
        return path

    def remove(self, path) -> None:
        self.touch(path, follow=False, removing=True)
        posix.unlink(path)

    def rmdir(self, path) -> None:
        self.touch(path, follow=False)
        posix.rmdir(path)

    def folder(self, path):
        """For a folder that is about to be made, with those above it, or to be written into."""
        top = layers.canonical(self.absolute(path), True)
        while layers.mode_of(top) is None and layers.mode_of(os.path.dirname(top)) is None:
            top = os.path.dirname(top)
        if layers.mode_of(top) is None:
            self.touch(top)
        return path

    def mkdir(self, path, mode: int = 0o777) -> None:
        self.touch(path, follow=False)
        posix.mkdir(path, mode)

    def symlink(self, target, path) -> None:
        self.touch(path, follow=False)
        posix.symlink(target, path)

    def link(self, source, path) -> None:
        self.touch(path, follow=False)
        posix.link(source, path)

    def rename(self, source, path) -> None:
        old = self.touch(source, follow=False, removing=True)
        new = self.touch(path, follow=False, removing=True)
        mode = layers.mode_of(old)
        if mode is not None and stat.S_ISDIR(mode) and (seen := self.before.look(old, False)) and seen.kind == "here":
            self.before.share(old, new)  # the folder was there before the job: its files are now where it goes
        posix.rename(source, path)
