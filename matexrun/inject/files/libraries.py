"""Libraries that open files by themselves, past Python's `open`: their paths are led through the rank's role, too."""

import contextlib
import functools
import os
import urllib.parse

import wrapt

SIDE_FILES = ("-journal", "-wal", "-shm")  # of an SQLite database


def register(role) -> None:
    """Patch each of them when it is imported."""
    wrapt.register_post_import_hook(functools.partial(_sqlite3, role), "sqlite3")
    wrapt.register_post_import_hook(functools.partial(_h5py, role), "h5py")


def _sqlite3(role, module) -> None:
    """Patch sqlite3.connect(database, ...); `dbapi2` has it, and `sqlite3` its name."""
    from matexrun.inject.files.patches import passing

    original = module.connect

    @functools.wraps(original)
    def connect(database, *args, **kwargs):
        if not passing():
            database = _database(role, database, kwargs.get("uri", False))
        return original(database, *args, **kwargs)

    module.connect = module.dbapi2.connect = connect


def _database(role, database, uri: bool):
    """What to connect to instead of `database`. Its side files belong to it."""
    name = os.fsdecode(database)
    if name in ("", ":memory:"):
        return database
    if not (uri and name.startswith("file:")):
        return _with_side_files(role, database)
    parts = urllib.parse.urlsplit(name)
    options = urllib.parse.parse_qs(parts.query)
    path = urllib.parse.unquote(parts.path)
    if options.get("mode") == ["memory"] or path in ("", ":memory:"):
        return database
    if options.get("mode") == ["ro"] or "immutable" in options:
        real = role.reading(path)
    else:
        real = _with_side_files(role, path)
    return parts._replace(path=urllib.parse.quote(os.path.abspath(real)), netloc="").geturl()


def _with_side_files(role, database):
    real = role.writing(database, keep=True)
    for suffix in SIDE_FILES:
        with contextlib.suppress(FileNotFoundError):
            role.writing(os.fsdecode(database) + suffix, keep=True, create=False)
    return real


def _h5py(role, module) -> None:
    """Patch h5py.File.__init__(self, name, mode="r", driver=None, ...)."""
    from matexrun.inject.files.patches import passing

    original = module.File.__init__

    @functools.wraps(original)
    def __init__(self, name, mode="r", *args, **kwargs):
        if isinstance(name, (str, bytes, os.PathLike)) and kwargs.get("driver") != "core" and not passing():
            if mode == "r":
                name = role.reading(name)
            else:
                create, exclusive = mode != "r+", mode in ("x", "w-")
                name = role.writing(name, keep=mode in ("a", "r+"), create=create, exclusive=exclusive)
        original(self, name, mode, *args, **kwargs)

    module.File.__init__ = __init__
