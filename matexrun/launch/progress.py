"""What the launcher tells its user, on stderr: warnings of the ranks, and with -v what happens when."""

import sys
import time

from matexrun.launch.events import Event

_PHASES = {
    "started": "all ranks have started",
    "activated": "matexrun is active in all ranks",
    "claimed": "all ranks are in MPI",
    "leaving": "the script has ended on all ranks",
    "exited": "all ranks have ended",
}


def say(message: object) -> None:
    """A line, or several, from matexrun to its user."""
    print(f"matexrun: {message}", file=sys.stderr, flush=True)


class Progress:
    """size: number of ranks.  verbose: 0 warnings only, 1 also phases, 2 also every event."""

    def __init__(self, size: int, verbose: int):
        self._size = size
        self._verbose = verbose
        self._began = time.monotonic()
        self._warned: set[str] = set()
        self._ranks_in: dict[str, set[int]] = {phase: set() for phase in _PHASES}

    def explain(self, message: str) -> None:
        """Say it, with the time since the start, if the user wants to know."""
        if self._verbose:
            say(f"{time.monotonic() - self._began:6.2f} s  {message}")

    def show(self, event: Event) -> None:
        """What there is to say of an event; a warning only the first time that any rank gives it."""
        if self._verbose > 1:
            self.explain(f"rank {event.rank} on {event.host}: {event.name} {event.fields or ''}".rstrip())
        if event.name == "warning":
            message = str(event.fields.get("message", ""))
            if message not in self._warned:
                self._warned.add(message)
                say(message)
        elif event.name == "note":
            self.explain(str(event.fields.get("message", "")))
        elif event.name in _PHASES:
            ranks = self._ranks_in[event.name]
            if event.rank not in ranks:
                ranks.add(event.rank)
                if len(ranks) == self._size:
                    self.explain(_PHASES[event.name])
