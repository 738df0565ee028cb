"""Files: rank 0 reads and writes as one process would; what the others write goes to scratch copies.

Opening a file is no collective: ranks may open different ones, and none waits for another. Instead, each rank has a
view of the file system in which only it has written anything since the job began.

layers     files that differ from those below them, kept on disk
view       what ranks other than 0 see and write
record     what rank 0 changes, kept as it was for those that come later
patches    Python's own functions, led through one of the two
listing    what scanning a folder of several layers gives
names      names of runs, and services that record runs
libraries  libraries that open files by themselves: sqlite3, h5py
gfile      tf.io.gfile
tf_files   files of TensorFlow's operations: tf.io, tf.data, tf.summary
together   files that all ranks write together: rank 0 does, and all see them
checkpoints such files of TensorFlow: checkpoints and SavedModels
"""

import atexit
import os
import tempfile

from matexrun import reports
from matexrun.inject.files import layers, libraries, names, patches
from matexrun.inject.files.layers import Layer
from matexrun.inject.files.record import Recorder
from matexrun.inject.files.view import View
from matexrun.settings import Settings

_role: Recorder | View | None = None
_written: dict[str, None] = {}  # what this rank has written to scratch copies, in order


def role() -> Recorder | View | None:
    """How this rank sees files: a Recorder on rank 0, a View elsewhere; None where `start` was not called."""
    return _role


def start(job: Settings, rank: int) -> None:
    """Called once, before the script runs. Needs the folder of the job, which all ranks of a node share."""
    global _role
    folder = os.path.join(os.path.realpath(job.job_dir), "files")
    before = Layer(os.path.join(folder, "before"))
    private = tuple(map(layers.normal, ("/dev", "/proc", "/sys", os.path.realpath(job.job_dir), *_caches())))
    if job.log_dir:
        private += (os.path.realpath(job.log_dir),)
    if rank == 0:
        _role = Recorder(before, private)
    else:
        # A folder for temporary files of its own: there everything is real, for libraries and subprocesses too.
        temporary = os.path.join(folder, f"tmp-{rank}")
        os.makedirs(temporary, mode=0o700, exist_ok=True)
        os.environ["TMPDIR"] = temporary
        tempfile.tempdir = None
        _role = View(Layer(os.path.join(folder, f"rank-{rank}")), before, private, _note)
        if rank == 1:
            atexit.register(_report, os.getpid())
    patches.install(_role)
    libraries.register(_role)
    names.start(job, rank)


def patch_tensorflow() -> None:
    """Called once, when TensorFlow was imported."""
    from matexrun.inject.files import checkpoints, tf_files

    tf_files.patch(_role)
    checkpoints.patch(_role)


def _caches() -> list[str]:
    """Folders that libraries share between processes, with locks of their own."""
    home = os.path.expanduser("~")
    caches = [os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache", os.environ.get("KERAS_HOME") or f"{home}/.keras"]
    caches += [os.environ.get("MPLCONFIGDIR") or f"{home}/.config/matplotlib", f"{home}/.nv"]
    return [os.path.realpath(cache) for cache in caches]


def _note(path: str) -> None:
    _written.setdefault(path)


def _report(pid: int) -> None:
    if _written and os.getpid() == pid:
        names = sorted(os.path.relpath(path) for path in _written if _role.find(path).place == "own")
        some = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        reports.send("note", message=f"only rank 0's copies of the files that all ranks wrote are kept: {some}")
