"""From the events of a job to its end: has it failed, which rank began it, what was wrong? Pure: reads events only.

One failing rank makes others fail: mpiexec kills them, or MPI calls of theirs return errors. Such consequences must
never be told as the cause.
"""

import dataclasses
import signal

from matexrun.launch.events import Event

# A rank may reach its end while others still receive their share of the last collective. One that still waits so many
# seconds after both facts are known waits for ever.
DESERTED_AFTER = 2.0


def problem(code: int, reported: set[str]) -> str | None:
    """What is wrong with the end of a rank, as it continues the words `rank 1 on HOST`; None where nothing is.

    code: exit code of the process, -N for signal N.  reported: names of the events that it has sent.
    """
    if code < 0:
        return f"was killed by {signal_name(-code)} (status {exit_status(code)})"
    if code > 0:
        return f"failed with status {code}"
    if "activated" not in reported:
        return (
            "ran without matexrun in it: Python did not import the sitecustomize that the launcher put first in "
            "PYTHONPATH. Do not start the script with python -I, -S or -E, and do not replace PYTHONPATH"
        )
    if "claimed" in reported and "finished" not in reported:
        return (
            "ended with status 0 in the middle of the job, without ending MPI: let the script run to its end, or use "
            "sys.exit instead of os._exit"
        )
    return None


def exit_status(code: int) -> int:
    """The exit status that a shell shows for an exit code of which -N means signal N."""
    return 128 - code if code < 0 else code


def signal_name(number: int) -> str:
    """Like SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # the real-time signals have no names


@dataclasses.dataclass(frozen=True)
class Failure:
    """How a rank failed. status: its exit status.  traceback: what it said of the exception, or empty.
    consequence: 0, or higher the surer it is that another failure came first."""

    rank: int
    host: str
    problem: str
    status: int
    traceback: str
    time: float
    consequence: int

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} {self.problem}"


@dataclasses.dataclass
class _Rank:
    host: str = ""
    process: int | None = None
    worker: int | None = None
    traceback: str = ""
    waiting: tuple[str, float] | None = None  # in which collective, known since when
    left: float | None = None  # when we learned that the script has ended there
    ended: Event | None = None


class Ranks:
    """What is known of the ranks of a job. Times given as `now` are of one monotonic clock, in seconds."""

    def __init__(self, size: int):
        self._ranks = {rank: _Rank() for rank in range(size)}

    def see(self, event: Event, now: float) -> None:
        """Take an event into account."""
        rank = self._ranks.setdefault(event.rank, _Rank())
        rank.host = event.host
        if event.name == "started":
            rank.process, rank.worker = event.fields["pid"], event.fields["worker"]
        elif event.name == "failed":
            rank.traceback = str(event.fields.get("traceback", ""))
        elif event.name == "waiting":
            rank.waiting = (str(event.fields.get("what", "a collective")), now)
        elif event.name == "resumed":
            rank.waiting = None
        elif event.name == "leaving":
            rank.left = now
        elif event.name == "exited":
            rank.ended = event
            rank.left = rank.left or now

    def workers(self, host: str) -> dict[int, int]:
        """{rank: process id of its worker} of the ranks on `host` that have not ended."""
        return {
            number: rank.worker
            for number, rank in self._ranks.items()
            if rank.host == host and rank.worker and not rank.ended
        }

    def process(self, rank: int) -> int:
        """Process id, on its host, of a rank that has started."""
        return self._ranks[rank].process

    def started(self) -> list[int]:
        """Ranks whose workers have reported anything."""
        return [number for number, rank in self._ranks.items() if rank.host]

    def running(self) -> list[int]:
        """Ranks that have started and not ended."""
        return [number for number in self.started() if not self._ranks[number].ended]

    def all_well(self) -> bool:
        """Have all ranks ended as they should?"""
        return all(rank.ended and not rank.ended.fields["problem"] for rank in self._ranks.values())

    def stuck(self) -> bool:
        """Can none of the running ranks go on, because they all wait in collectives and a rank has ended?"""
        running = self.running()
        return len(running) < len(self.started()) and all(self._ranks[number].waiting for number in running)

    def failure(self) -> Failure | None:
        """The failure that began it all, as far as is known."""
        failures = [self._failure_of(number) for number, rank in self._ranks.items() if rank.ended]
        return min(filter(None, failures), key=lambda failure: (failure.consequence, failure.time), default=None)

    def _failure_of(self, number: int) -> Failure | None:
        rank = self._ranks[number]
        fields = rank.ended.fields
        if not fields["problem"]:
            return None
        # A rank that was told to end may still end by its own mistake; one that died of the signal surely had none.
        by_signal = fields["status"] in (128 + signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGKILL)
        consequence = (2 if by_signal else 1) if fields["asked"] else 0
        return Failure(
            number, rank.host, fields["problem"], fields["status"], rank.traceback, rank.ended.time, consequence
        )

    def deserted(self, now: float) -> str | None:
        """The sentence about a rank that waits for one that has left its script, or None where there is none."""
        for number, rank in self._ranks.items():
            if not rank.waiting or rank.left is not None:
                continue
            for other_number, other in self._ranks.items():
                if other.left is not None and now - max(other.left, rank.waiting[1]) > DESERTED_AFTER:
                    return (
                        f"rank {other_number} on {other.host} has left the script, while rank {number} on {rank.host} "
                        f"still waits for it in {rank.waiting[0]}: all ranks must take the same steps"
                    )
        return None
