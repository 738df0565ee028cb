"""Processes on this machine, in Linux's terms: who is told of whose death, who belongs to a job, and ending them all.

Standard library only: the launcher and every worker use it before anything else is imported.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def signal_when_parent_dies(signum: int) -> None:
    """Have the kernel send this process `signum` when its parent is gone. Survives exec, not fork.

    The kernel also sends it when only the thread of the parent that forked us has ended: handlers look at getppid().
    """
    _prctl(_PR_SET_PDEATHSIG, signum)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that `descendants` finds them wherever they hide."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is not just waiting for its parent to take note of its end."""
    return _state_and_parent(pid)[0] not in ("", "Z", "X")


def _state_and_parent(pid: int) -> tuple[str, int]:
    """As in /proc/PID/stat, the state as one letter; ("", 0) where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except OSError:
        return "", 0
    return state.decode(), int(parent)


def descendants(root: int) -> list[int]:
    """Process ids of the living children of `root`, their children, and so on."""
    children: dict[int, list[int]] = {}
    for pid in _all_pids():
        children.setdefault(_state_and_parent(pid)[1], []).append(pid)
    found, generation = [], [root]
    while generation:
        generation = [child for parent in generation for child in children.get(parent, ())]
        found += generation
    return [pid for pid in found if is_alive(pid)]


def carrying(variable: str, value: str) -> list[int]:
    """Process ids, apart from our own, that were started with `variable=value` in their environment."""
    needle = f"\0{variable}={value}\0".encode()
    found = []
    for pid in _all_pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if needle in b"\0" + file.read() and pid != os.getpid():
                    found.append(pid)
        except OSError:  # ended meanwhile, or somebody else's
            continue
    return found


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def end(find: Callable[[], Iterable[int]], patience: float = 5.0) -> list[int]:
    """SIGKILL what `find()` returns until it returns nothing, because what is being killed may still fork.

    Reaps whatever children this process has. Returns the pids that were still there after `patience` seconds: the
    kernel cannot end a process that hangs in a driver or a file system.
    """
    deadline = time.monotonic() + patience
    while pids := list(find()):
        if time.monotonic() > deadline:
            return pids
        for pid in pids:
            send(pid, signal.SIGKILL)
        time.sleep(0.01)
        reap()
    reap()
    return []


def send(pid: int, signum: int) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass


def reap() -> dict[int, int]:
    """Collect all children that have ended: their exit codes by pid, -N for signal N."""
    ended = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)
