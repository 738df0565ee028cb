"""A communicator whose every collective first checks that all ranks are in the same one.

MPI matches collectives by their order alone: two ranks in different ones swap data silently, abort with "message
truncated", or hang. A 40-byte allreduce in front of each turns that into a CollectiveError on all ranks that names both
sides. It costs a few microseconds, and nothing where a rank has to wait for the others anyway.
"""

import contextlib
import functools
import hashlib
import os
import threading
import time

import numpy as np
from mpi4py import MPI

from matexrun.collectives import watch
from matexrun.errors import CollectiveError

SPIN = 200e-6  # seconds of polling for the other ranks, before
PAUSE = 100e-6  # seconds of sleep between two looks


@functools.lru_cache(maxsize=4096)
def digest(text: str) -> int:
    """63 bits that stand for `text` (the same in every process, unlike hash())."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


class Channel:
    """One lane of collectives over a communicator of its own.

    `queue`: a second thread waits for its turn (runtime threads, which TensorFlow has put in order) instead of being
    refused (Python threads, whose order would differ from rank to rank).
    """

    def __init__(self, comm: MPI.Comm, name: str, queue: bool):
        comm.Set_errhandler(MPI.ERRORS_RETURN)  # mpi4py then raises; the default would end the process without a word
        self._comm = comm
        self._name = name
        self._queue = queue
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._count = 0
        self._head = np.zeros(5, np.int64)

    @contextlib.contextmanager
    def collective(self, what: str, detail: str = "", flag: bool = False):
        """Enter the collective `what`; yields (communicator, whether any rank has set `flag`).

        what: as shown in messages.  detail: what else must agree between the ranks (dtypes and shapes).
        Raises CollectiveError where ranks disagree, in a forked child, and (without `queue`) in a second thread.
        """
        if os.getpid() != self._pid:
            raise CollectiveError(
                f"{what} in a forked child of a rank: only the rank itself may communicate. Start workers with the "
                'multiprocessing method "spawn", and keep training out of them'
            )
        if not self._lock.acquire(blocking=self._queue):
            raise CollectiveError(
                f"{what} while another thread is in a collective: the order of two threads differs from rank to rank. "
                "Call it from the main thread"
            )
        try:
            with watch.waiting(what):
                yield self._comm, self._agree(what, detail, flag)
        except MPI.Exception as error:
            raise CollectiveError(f"{what} failed in MPI: {error}") from error
        finally:
            self._lock.release()

    def _agree(self, what: str, detail: str, flag: bool) -> bool:
        self._count += 1
        key = digest(f"{what}\n{detail}")
        self._head[:] = self._count, -self._count, key, -key, flag
        _wait(self._comm.Iallreduce(MPI.IN_PLACE, self._head, MPI.MAX))
        count, minus_count, key, minus_key, flag = self._head.tolist()
        if count != -minus_count or key != -minus_key:
            raise CollectiveError(_disagreement(self._name, self._comm.allgather((self._count, what, detail))))
        return bool(flag)


def _wait(request: MPI.Request) -> None:
    """Wait for the other ranks; after a while leave the core to them, because there may be more ranks than cores."""
    eager = time.monotonic() + SPIN
    while not request.Test():
        if time.monotonic() > eager:
            time.sleep(PAUSE)


def _disagreement(name: str, calls: list[tuple[int, str, str]]) -> str:
    """The message for ranks that came with different calls: rank 0 against the first rank that differs."""
    other = next(rank for rank, call in enumerate(calls) if call != calls[0])
    sides = []
    for rank in (0, other):
        count, what, detail = calls[rank]
        sides.append(f"rank {rank} is at number {count}, {what}")
    mine, theirs = (calls[rank][2].splitlines() for rank in (0, other))
    for one, two in zip(mine, theirs, strict=False):
        if one != two:
            sides.append(f"the first difference is: {one} on rank 0, {two} on rank {other}")
            break
    return (
        f"the ranks disagree about a collective ({name}): {'; '.join(sides)}. All ranks must build the same model and "
        "take the same steps in the same order: look for code that depends on the rank, the host, the time or an "
        "unordered set"
    )
