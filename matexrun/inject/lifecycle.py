"""The life of one rank: claim a place in the MPI world, report how the script ended, and leave together.

At the end of the script every rank waits for all others before it ends MPI, because MPI_Finalize of one rank while
another one still trains hangs or kills, depending on the MPI. A rank whose script failed does not wait: it ends with
its own exit status, its worker sees that, and takes the job down. Nothing here may raise into the user's script.
"""

import atexit
import builtins
import os
import sys
import traceback as tracebacks

from matexrun import reports
from matexrun.errors import EnvironmentError_, MatexrunError
from matexrun.settings import Settings

# How long a rank that called sys.exit(n) looks whether the others are leaving too, before it leaves alone.
PATIENCE = 1.0  # seconds


class _Rank:
    job: Settings
    rank: int
    pid: int
    world = None
    exit_code = 0  # what the script asked for, or 1 after an uncaught exception
    failed = False
    at_end: list = []  # checks to make at the end of the script: () -> None, may raise MatexrunError


_me = _Rank()


def start(job: Settings, rank: int) -> None:
    """Called once per rank, at activation."""
    _me.job, _me.rank, _me.pid = job, rank, os.getpid()
    sys.excepthook = _report_exception(sys.excepthook)
    sys.exit = builtins.exit = builtins.quit = _record_exit(sys.exit)
    atexit.register(_end)  # registered first, so it runs after the script's own handlers


def job() -> Settings:
    """The settings of this job."""
    return _me.job


def rank() -> int:
    """This rank's number."""
    return _me.rank


def pid() -> int:
    """The process id of the rank; a forked child has another one."""
    return _me.pid


def world():
    """The MPI world (`collectives.world.World`), or None before TensorFlow was imported."""
    return _me.world


def claim() -> None:
    """Become rank `rank()` of the MPI world. Raises EnvironmentError_ or CollectiveError where the world is not the one
    that the launcher asked for. After this, children of this process know nothing of matexrun or MPI."""
    from matexrun import inject
    from matexrun.collectives import world as worlds

    if _me.world is not None:
        return
    reports.send("waiting", what="MPI_Init")  # a rank that ends before it imports TensorFlow would not be missed
    _me.world = worlds.init(_me.job.size)
    reports.send("resumed")
    if _me.world.rank != _me.rank:
        raise EnvironmentError_(
            f"MPI says that this is rank {_me.world.rank}, the launcher says {_me.rank}: "
            "the mpiexec in use does not belong to the MPI library that mpi4py loads (matexrun --doctor names both)"
        )
    reports.send("claimed", size=_me.world.size)
    inject.forget(os.environ)


def at_end(check) -> None:
    """Have `check()` called when the script has ended well; a MatexrunError it raises becomes the end of the run."""
    _me.at_end.append(check)


def die(error: BaseException, traceback: bool = False) -> None:
    """End this process at once because of `error`: one line, or its traceback. Does not return."""
    text = "".join(tracebacks.format_exception(error)) if traceback else f"matexrun: {error}\n"
    status = error.exit_status if isinstance(error, MatexrunError) else 1
    _tell(text, status)
    os._exit(status)


def _tell(text: str, status: int) -> None:
    """Report a failure. The launcher shows what it is told, so rank 0 must not print it as well."""
    _me.failed, _me.exit_code = True, status
    told = reports.send("failed", traceback=text, status=status)
    if not told or _me.rank != 0:
        sys.stderr.write(text)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass


def _report_exception(original):
    def excepthook(kind, value, tb):
        if os.getpid() != _me.pid:
            return original(kind, value, tb)
        if isinstance(value, MatexrunError):
            text, status = f"matexrun: {value}\n", value.exit_status
        else:
            text = "".join(tracebacks.format_exception(kind, value, tb))
            status = 130 if issubclass(kind, KeyboardInterrupt) else 1
        _tell(text, status)
        if isinstance(value, MatexrunError) and status != 1:
            os._exit(status)  # Python itself would end with 1

    return excepthook


def _record_exit(original):
    def exit(status=None, /):
        """Exit the interpreter by raising SystemExit(status)."""
        _me.exit_code = status if isinstance(status, int) else int(status is not None)
        original(status)

    return exit


def _end() -> None:
    if os.getpid() != _me.pid or _me.failed or getattr(sys, "last_value", None) is not None:
        return
    if _me.world is None:
        return
    try:
        if _me.exit_code == 0:
            for check in _me.at_end:
                check()
        reports.send("leaving")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if _me.world.finish(timeout=PATIENCE if _me.exit_code else None):
            reports.send("finished")
    except MatexrunError as error:
        die(error)
    except Exception as error:
        die(error, traceback=True)
