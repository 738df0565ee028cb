"""A watchdog: ranks whose gradients are the same before they are combined have computed the same rows.

Looks at the first reductions of gradients only, on all ranks alike, from within them.
"""

import os
import sys
import sysconfig
import threading
import zlib
from collections.abc import Sequence

import numpy as np

from matexrun import reports

UPDATES = 3  # reductions, with rows on two ranks at least, that must all look the same
_MOST = 20  # reductions after which nobody looks any more
_BYTES = 1 << 16  # of each tensor


class Watchdog:
    """One for each process; `look` is called by all ranks for the same reductions."""

    def __init__(self):
        self._looked = self._with_rows = self._same = 0

    def look(self, comm, sources: Sequence[np.ndarray], factor: float) -> None:
        """sources: this rank's own gradients, flat.  factor: what they will be multiplied by; 0 on a rank without rows,
        which is left out, as one with nothing but zeros. Collective over `comm`."""
        if self._with_rows == UPDATES or self._looked == _MOST:
            return
        self._looked += 1
        parts = [source[: _BYTES // source.itemsize] for source in sources]
        checksum = None
        if factor and any(np.any(part) for part in parts):
            checksum = 0
            for part in parts:
                checksum = zlib.crc32(part.view(np.uint8), checksum)
        found = [theirs for theirs in comm.allgather(checksum) if theirs is not None]
        if len(found) < 2:
            return
        self._with_rows += 1
        self._same += len(set(found)) == 1
        if self._same == UPDATES and comm.rank == 0:
            reports.send(
                "warning",
                message=f"{script_line()}: in the first {UPDATES} updates all ranks computed the same gradients: "
                "either all rows are the same, or what is trained on does not come from the batch, and so was not "
                "split: then the result is right, but no sooner",
            )


def script_line() -> str:
    """Where the script is, as file:line: the innermost call of the main thread that is no library's."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    libraries = (ours, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")), "<")
    frame = sys._current_frames().get(threading.main_thread().ident)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(libraries) and f"{os.sep}site-packages{os.sep}" not in name:
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return "this script"
