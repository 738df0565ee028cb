"""Events that a rank reports to its worker: JSON lines over an inherited pipe. Shared by both sides of the job.

activated            sitecustomize ran in this rank
claimed  size        MPI is initialised; `size` ranks
failed   traceback   an uncaught exception; `status` is the exit status that follows
waiting  what        the rank has waited in the collective `what` for more than a second
resumed              that wait is over
leaving              the script has ended on this rank; it waits for the others before it ends MPI
finished             all ranks have ended; the exit status that follows is the script's own
warning  message     to be shown by the launcher once, whichever rank says it
note     message     shown with -v
"""

import json
import os

from matexrun import settings


def send(event: str, **fields) -> bool:
    """Report to the worker. False where there is no worker to hear it (never raises: a report must not fail a run)."""
    fd = os.environ.get(settings.REPORT_FD) or _fd
    if not fd:
        return False
    try:
        os.write(int(fd), (json.dumps({"event": event, **fields}) + "\n").encode())
        return True
    except OSError:
        return False


_fd = None


def keep_channel() -> None:
    """Remember the channel, so that it outlives the removal of our variables from the environment."""
    global _fd
    _fd = os.environ.get(settings.REPORT_FD)
