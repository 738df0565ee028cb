"""What MPI libraries leave behind when their processes are killed: shared memory, which stays allocated until a reboot.

Each removes its segments at the end of a job that goes well (MPICH 5: 3 MB a job, Open MPI 5: 16 MB a rank). Here they
are found as files that a rank has mapped, and removed when all of the job's processes are dead.
"""

import contextlib
import os
import re

_SEGMENT = re.compile(r"(/dev/shm/(?:mpich_shm_|mpich_shar_tmp|Intel_MPI_|sm_segment\.|vader_segment\.)[^/]*)$")


class SharedMemory:
    """The segments of MPI that ranks on this machine have mapped."""

    def __init__(self):
        self._paths: set[str] = set()

    def note(self, pid: int) -> None:
        """Remember the segments of a process that has just initialised MPI."""
        with contextlib.suppress(OSError):  # it has ended; another rank may still have them mapped
            with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
                self._paths |= {found[1] for line in maps if (found := _SEGMENT.search(line.rstrip("\n")))}

    def remove(self) -> None:
        """To be called when all processes that have mapped them are dead."""
        for path in self._paths:
            with contextlib.suppress(OSError):  # MPI has removed it itself
                os.unlink(path)
