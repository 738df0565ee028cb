"""Files that all ranks write together: rank 0 does, the others wait, and from then on all see rank 0's files.

For state that the ranks share (models, checkpoints), which all ranks save at the same place of the script. Collective.
"""

import contextlib
import os
import stat
import threading

from matexrun.inject import files, lifecycle
from matexrun.inject.files import layers

_local = threading.local()


def writing() -> bool:
    """Whether this thread is within `one_writer`."""
    return getattr(_local, "writing", False)


def one_writer(write, what: str, path=None, made=None):
    """Run `write()` on rank 0 while the others wait; returns its result there, None elsewhere. Collective.

    path: the file or folder that is written, where a library writes it past Python's `open`; ranks may call it by
    different names. made: function of that path to the list of files and folders that are now there; default: `tree`.
    A rank whose path lies in its own folder for temporary files runs `write()` as well, and gets its result.
    Raises on every rank where it raised on rank 0: the error itself there, an OSError elsewhere.
    """
    if writing():
        result = write()
        _note(path, made)
        return result
    world = lifecycle.world()
    result = error = seen = None
    if world.rank == 0:
        if path is not None:
            files.role().folder(os.path.dirname(files.role().absolute(path)))
        with collected() as paths:
            try:
                result = write()
            except Exception as raised:
                error = raised
            root = _note(path, made)
        seen = publish(paths), root
    failure, seen = world.broadcast_object((None if error is None else f"{type(error).__name__}: {error}", seen))
    if error is not None:
        raise error
    if failure is not None:
        raise OSError(f"{what} failed on rank 0: {failure}")
    if world.rank != 0:
        if path is not None and files.role().find(path).place == "private":
            with _within():
                result = write()
        else:
            adopt(seen, path)
    return result


def _note(path, made) -> str | None:
    """On rank 0, note what has been made at `path`; returns it, canonical."""
    if path is None or lifecycle.rank() != 0:
        return None
    root = layers.canonical(files.role().absolute(path), True)
    files.role().note(dict.fromkeys((made or tree)(root)))
    return root


@contextlib.contextmanager
def collected():
    """Within it, rank 0 notes the paths it changes, for all ranks to see, instead of keeping what they were."""
    with _within(), files.role().noting() as paths:
        yield paths


@contextlib.contextmanager
def _within():
    _local.writing = True
    try:
        yield
    finally:
        _local.writing = False


def publish(paths) -> list[tuple]:
    """On rank 0: what `adopt` needs on the others to see `paths` (canonical) as they are now."""
    described = []
    for path in dict.fromkeys(paths):
        mode = layers.mode_of(path)
        kind = None if mode is None else "folder" if stat.S_ISDIR(mode) else "file"
        files.role().publish(path, kind)
        described.append((path, kind))
    return described


def adopt(seen: tuple[list[tuple], str | None], path=None) -> None:
    """On other ranks: see what `publish` described. seen: that, and what rank 0 calls the `path` of this rank."""
    described, root = seen
    role = files.role()
    mine = root and role.find(path).path
    for name, kind in described:
        inside = root and (name == root or name.startswith(f"{root}/"))
        role.adopt(mine + name[len(root) :] if inside else name, name, kind)
    if mine != root and not mine.startswith(f"{root}/"):
        role.own.hide(root)


def tree(root: str) -> list[str]:
    """A file, or a folder with all that is in it."""
    if not os.path.isdir(root):
        return [root]
    return [root] + [os.path.join(at, name) for at, folders, names in os.walk(root) for name in (*folders, *names)]
