"""What os.scandir returns for a folder of several layers."""

import os
import stat


class Entry:
    """Like os.DirEntry; it asks `os`, so that it sees what the rank sees."""

    def __init__(self, name, path):
        self.name, self.path = name, path

    def __fspath__(self):
        return self.path

    def __repr__(self):
        return f"<Entry {self.name!r}>"

    def stat(self, *, follow_symlinks=True):
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self):
        return self.stat(follow_symlinks=False).st_ino

    def is_symlink(self):
        return self._is(stat.S_ISLNK, False)

    def is_dir(self, *, follow_symlinks=True):
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks=True):
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_junction(self):
        return False

    def _is(self, kind, follow_symlinks) -> bool:
        try:
            return kind(self.stat(follow_symlinks=follow_symlinks).st_mode)
        except FileNotFoundError:
            return False


class Listing:
    """An iterator over entries that can be closed."""

    def __init__(self, folder, names):
        if isinstance(folder, bytes):
            names = [os.fsencode(name) for name in names]
        self._entries = iter([Entry(name, os.path.join(folder, name)) for name in names])

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._entries)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._entries = iter(())
