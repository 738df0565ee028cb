"""How events travel from the workers to the launcher: as JSON lines, in one file per rank in the job's private folder.

Whoever needs another way (workers on other machines) replaces `Sender` and `Receiver`; nobody else knows of files. The
events of matexrun.reports are passed on as they are. A worker adds its own:

    started  pid, worker              the rank runs as process `pid`, its worker is process `worker`
    exited   status, problem, asked   the rank has ended; `problem` says what is wrong with that, or is null; `asked` is
                                      true where the rank had been sent a signal to end before
"""

import dataclasses
import json
import os
import socket
import time

_SUFFIX = ".events"


@dataclasses.dataclass(frozen=True)
class Event:
    """What happened (`name`) on a rank: at `time` (seconds since the epoch, by the clock of `host`), with `fields`."""

    name: str
    rank: int
    host: str
    time: float
    fields: dict


class Sender:
    """A worker's end. Raises OSError where the job's folder is not there."""

    def __init__(self, job_dir: str, rank: int):
        self._rank = rank
        self._host = socket.gethostname()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(os.path.join(job_dir, f"rank-{rank}{_SUFFIX}"), flags, 0o600)

    def send(self, name: str, /, **fields) -> None:
        """Returns when the event can no longer be lost with this process."""
        event = Event(name, self._rank, self._host, time.time(), fields)
        os.write(self._file, (json.dumps(dataclasses.asdict(event)) + "\n").encode())


class Receiver:
    """The launcher's end."""

    def __init__(self, job_dir: str):
        self._job_dir = job_dir
        self._read: dict[str, int] = {}  # bytes of each file that have been returned as events

    def poll(self) -> list[Event]:
        """The events that have come since the last call, by time. Does not wait."""
        events = []
        with os.scandir(self._job_dir) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX):
                    events += self._new_in(entry.path)
        return sorted(events, key=lambda event: event.time)

    def _new_in(self, path: str) -> list[Event]:
        start = self._read.get(path, 0)
        with open(path, "rb") as file:
            file.seek(start)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._read[path] = start + len(complete)
        return [Event(**json.loads(line)) for line in complete.splitlines()]
