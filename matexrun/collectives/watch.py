"""Who waits in a collective, and since when; a long wait is reported to the launcher.

A rank whose partner died waits in MPI for ever and can do nothing about it itself: the launcher must learn of it from
outside. One daemon thread looks every half second, so a collective costs two dictionary operations and no wake-up.
Imports neither MPI nor TensorFlow.
"""

import contextlib
import itertools
import threading
import time

from matexrun import reports

PATIENCE = 1.0  # seconds in one collective after which the launcher is told
_PERIOD = 0.5  # seconds between two looks

_numbers = itertools.count()
_waits: dict[int, tuple[str, float]] = {}  # one entry for each collective that a thread of this process is in
_started = threading.Lock()


@contextlib.contextmanager
def waiting(what: str):
    """Mark the time in which this thread is inside the blocking collective `what`."""
    number = next(_numbers)
    _waits[number] = (what, time.monotonic())
    try:
        yield
    finally:
        del _waits[number]


def start() -> None:
    """Start the watching thread (once in a process)."""
    if _started.acquire(blocking=False):
        threading.Thread(target=_watch, name="matexrun-watch", daemon=True).start()


def _watch() -> None:
    reported = None
    while True:
        time.sleep(_PERIOD)
        if reported is not None and reported not in _waits:
            reports.send("resumed")
            reported = None
        if reported is None:
            late = time.monotonic() - PATIENCE
            for number, (what, since) in list(_waits.items()):
                if since < late:
                    reports.send("waiting", what=what)
                    reported = number
                    break
