"""Run a job: start mpiexec, follow what its ranks report, and end with nothing left behind.

mpiexec is only believed where it is the one that fails: whether the job failed, and with which status, is for the
ranks' workers to say (`verdict`). However a job ends, all of its processes on this machine are killed before `run`
returns; the process that calls it must have no other children.
"""

import os
import signal
import socket
import subprocess
import sys
import time

from matexrun.errors import CollectiveError, EnvironmentError_, MatexrunError, RankFailed
from matexrun.launch import output, processes
from matexrun.launch.events import Receiver
from matexrun.launch.verdict import Ranks, exit_status
from matexrun.settings import PREFIX, Settings

POLL = 0.05  # seconds between two looks at the job
SETTLE = 0.5  # seconds after a failure in which mpiexec may end by itself, and an earlier failure may become known
GRACE = 5.0  # seconds that ranks have to end after Ctrl-C or TERM

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


def run(command: list[str], environment: dict[str, str], settings: Settings) -> int:
    """Run `command`, which starts a worker per rank, in `environment`, and return the exit status of the job.

    0 where all ranks ended well, else that of the rank that failed first (128 + N for signal N), whose failure is
    shown on stderr. After Ctrl-C or TERM: 130 or 143, unless all ranks took that as a reason to end well.
    settings.job_dir is an empty folder that only this user may enter; the caller removes it. Keeps the signal handlers
    that it installs, so that an impatient Ctrl-C cannot interrupt what the caller has to clear up.
    """
    sys.stdout.flush()  # the ranks are about to write to the same place
    try:
        processes.adopt_orphans()
        return _Job(command, environment, settings).run()
    except MatexrunError as error:
        _say(error)
        return error.exit_status
    finally:
        _end_all(settings)


def _say(message: object) -> None:
    print(f"matexrun: {message}", file=sys.stderr, flush=True)


def _end_all(settings: Settings) -> None:
    def find() -> set[int]:
        return {*processes.descendants(os.getpid()), *processes.carrying(f"{PREFIX}JOB_DIR", settings.job_dir)}

    if left := processes.end(find):
        _say(f"these processes of the job do not end, not even by SIGKILL: {', '.join(map(str, left))}")


class _Job:
    def __init__(self, command: list[str], environment: dict[str, str], settings: Settings):
        self._command = command
        self._environment = environment
        self._settings = settings
        self._began = time.monotonic()
        self._ranks = Ranks(settings.size)
        self._receiver = Receiver(settings.job_dir)
        self._lender = output.Lender(settings.job_dir)
        self._mpiexec_output = os.path.join(settings.job_dir, "mpiexec.output")
        self._warned: set[str] = set()
        self._reached: set[str] = set()  # phases that all ranks have passed
        self._counts: dict[str, set[int]] = {}
        self._signals: list[int] = []  # received and not yet handled
        self._stopped_by: int | None = None
        self._stop_at = float("inf")
        self._told: set[int] = set()  # workers that have been sent the signal to end
        self._deserted: str | None = None

    def run(self) -> int:
        for signum in (*_ENDING, *_PASSED_ON):
            if signal.getsignal(signum) != signal.SIG_IGN:  # nohup has HUP ignored, and means it
                signal.signal(signum, lambda signum, _: self._signals.append(signum))
        self._start()
        while self._mpiexec.poll() is None and not self._is_over():
            self._turn(POLL)
        settled = time.monotonic() + SETTLE
        while self._stopped_by is None and self._mpiexec.poll() is None and time.monotonic() < settled:
            self._turn(POLL)
        ended_itself = self._mpiexec.poll()
        self._explain(f"ending: mpiexec {'is killed' if ended_itself is None else f'ended with {ended_itself}'}")
        _end_all(self._settings)
        self._turn(0)  # what the workers wrote last
        self._lender.close()
        return self._conclude(ended_itself)

    def _start(self) -> None:
        self._explain(f"starting {self._settings.size} ranks: {' '.join(self._command)}")

        def bind_to_launcher() -> None:
            processes.signal_when_parent_dies(signal.SIGKILL)

        try:
            with open(self._mpiexec_output, "wb") as messages:
                self._mpiexec = subprocess.Popen(
                    self._command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=messages,
                    stderr=messages,
                    start_new_session=True,  # Ctrl-C in the terminal is for us to pass on
                    preexec_fn=bind_to_launcher,
                )
        except OSError as error:
            raise EnvironmentError_(
                f"cannot start {self._command[0]}: {error.strerror}: expected the mpiexec of the MPI library that "
                f"mpi4py loads (matexrun --doctor looks for it)"
            ) from None

    def _turn(self, seconds: float) -> None:
        """Wait up to `seconds` while serving the workers, then take note of all that has happened."""
        self._lender.wait(seconds)
        now = time.monotonic()
        for event in self._receiver.poll():
            self._ranks.see(event, now)
            self._show(event)
        while self._signals:
            self._handle(self._signals.pop(0))
        if self._stopped_by is not None:
            self._pass_on_ending()

    def _show(self, event) -> None:
        if event.name == "warning":
            message = str(event.fields.get("message", ""))
            if message not in self._warned:
                self._warned.add(message)
                _say(message)
        elif self._settings.verbose and event.name in _PHASES:
            ranks = self._counts.setdefault(event.name, set())
            ranks.add(event.rank)
            if len(ranks) == self._settings.size:
                self._explain(_PHASES[event.name])
        if self._settings.verbose > 1:
            self._explain(f"rank {event.rank} on {event.host}: {event.name} {event.fields or ''}")

    def _explain(self, message: str) -> None:
        if self._settings.verbose:
            _say(f"{time.monotonic() - self._began:6.2f} s  {message}")

    def _handle(self, signum: int) -> None:
        if signum in _PASSED_ON:
            self._send(signum, self._ranks.workers(socket.gethostname()))
        elif self._stopped_by is None:
            self._stopped_by = signum
            self._stop_at = time.monotonic() + GRACE
            name = signal.Signals(signum).name
            _say(f"{name}: the ranks have {GRACE:.0f} s to end; a second {name} ends them at once")
        else:
            self._stop_at = 0.0

    def _pass_on_ending(self) -> None:
        """To each worker once, also to those that have started since. A rank sees HUP as TERM: workers use HUP."""
        signum = signal.SIGINT if self._stopped_by == signal.SIGINT else signal.SIGTERM
        new = set(self._ranks.workers(socket.gethostname())) - self._told
        self._told |= new
        self._send(signum, new)

    def _send(self, signum, workers) -> None:
        for worker in workers:
            processes.send(worker, signum)

    def _is_over(self) -> bool:
        now = time.monotonic()
        if self._stopped_by is not None:
            return now > self._stop_at or not self._ranks.running() or self._ranks.stuck()
        self._deserted = self._ranks.deserted(now)
        return self._deserted is not None or self._ranks.failure() is not None

    def _conclude(self, mpiexec_code: int | None) -> int:
        """The exit status of the job, after its end. Raises MatexrunError that tells the cause of a failure.

        mpiexec_code: its exit code where it ended by itself, -N for signal N.
        """
        if self._ranks.all_well():
            return 0
        if self._stopped_by is not None:
            return 128 + self._stopped_by
        if self._deserted is not None:
            raise CollectiveError(f"{self._deserted}{self._logs()}")
        failure = self._ranks.failure()
        if failure is not None and not (failure.consequence and mpiexec_code is not None and mpiexec_code < 0):
            raise RankFailed(f"{failure}{self._evidence(failure)}", failure.status or 1)
        raise self._mpiexec_failure(mpiexec_code or 0)

    def _evidence(self, failure) -> str:
        """What there is to see of a failure: its traceback, or the last lines of its log, and where the log is."""
        text = failure.traceback
        path = output.log_path(self._settings.log_dir, failure.rank)
        has_log = failure.rank != 0 and os.path.exists(path)
        if not text and has_log:
            text = output.tail(path)
        parts = [text.rstrip("\n")] if text.strip() else []
        if has_log:
            parts.append(f"matexrun: the output of rank {failure.rank} is in {path}")
        return "".join(f"\n{part}" for part in parts)

    def _logs(self) -> str:
        return f"\nmatexrun: the output of the ranks other than 0 is in {self._settings.log_dir}"

    def _mpiexec_failure(self, code: int) -> MatexrunError:
        name = os.path.basename(self._command[0])
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        running = self._ranks.running()
        if running:
            when = f"while these ranks were still running: {', '.join(map(str, running))}"
        elif self._ranks.started():
            when = f"although only {len(self._ranks.started())} of {self._settings.size} ranks had run"
        else:
            when = "before any rank started"
        message = f"{name} {how} {when}"
        if said := output.tail(self._mpiexec_output).strip():
            message += f"; it said:\n{said}"
        if running:
            message += f"\nmatexrun: a rank has called MPI_Abort, or a worker was killed{self._logs()}"
        elif not self._ranks.started():
            message += "\nmatexrun: `matexrun --doctor` checks MPI, its mpiexec and a run of 2 ranks"
        return RankFailed(message, exit_status(code) or 1)


_PHASES = {
    "started": "all ranks have started",
    "activated": "matexrun is active in all ranks",
    "claimed": "all ranks are in MPI",
    "leaving": "the script has ended on all ranks",
    "exited": "all ranks have ended",
}
