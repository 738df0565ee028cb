"""Run a job: start mpiexec, follow what its ranks report, and end with nothing left behind.

mpiexec is only believed where it is the one that fails: whether the job failed, and with which status, is for the
ranks' workers to say (`verdict`). However a job ends, all of its processes on this machine are killed before `run`
returns; the process that calls it must have no other children.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable

from matexrun.errors import CollectiveError, MatexrunError, RankFailed
from matexrun.launch import output, processes
from matexrun.launch.events import Receiver
from matexrun.launch.leftovers import SharedMemory
from matexrun.launch.progress import Progress, say
from matexrun.launch.verdict import Failure, Ranks, exit_status, signal_name
from matexrun.settings import PREFIX, Settings

POLL = 0.05  # seconds between two looks at the job
SETTLE = 0.5  # seconds at the end in which mpiexec may end by itself, and an earlier failure may become known
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
        say(error)
        return error.exit_status
    finally:
        _end_all(settings)


def _end_all(settings: Settings) -> None:
    def find() -> set[int]:
        return {*processes.descendants(os.getpid()), *processes.carrying(f"{PREFIX}JOB_DIR", settings.job_dir)}

    if left := processes.end(find):
        say(f"these processes of the job do not end, not even by SIGKILL: {', '.join(map(str, left))}")


class _Job:
    def __init__(self, command: list[str], environment: dict[str, str], settings: Settings):
        self._command = command
        # Open MPI's session folder, which it leaves behind when it is killed, goes where it is removed with the job's.
        self._environment = {
            **environment,
            "PRTE_MCA_prte_tmpdir_base": settings.job_dir,
            "OMPI_MCA_orte_tmpdir_base": settings.job_dir,
        }
        self._settings = settings
        self._ranks = Ranks(settings.size)
        self._progress = Progress(settings.size, settings.verbose)
        self._receiver = Receiver(settings.job_dir)
        self._lender = output.Lender(settings.job_dir)
        self._shared_memory = SharedMemory()
        self._mpiexec_output = os.path.join(settings.job_dir, "mpiexec.output")
        self._signals: list[int] = []  # received and not yet handled
        self._stopped_by: int | None = None
        self._stop_at = float("inf")
        self._told: set[int] = set()  # workers that have been sent the signal to end

    def run(self) -> int:
        for signum in (*_ENDING, *_PASSED_ON):
            if signal.getsignal(signum) != signal.SIG_IGN:  # nohup has HUP ignored, and means it
                signal.signal(signum, lambda signum, _: self._signals.append(signum))
        self._start()
        while self._mpiexec.poll() is None and not self._is_over():
            self._turn(POLL)
        deserted = self._ranks.deserted(time.monotonic())
        settled = time.monotonic() + SETTLE
        while self._stopped_by is None and self._mpiexec.poll() is None and time.monotonic() < settled:
            self._turn(POLL)
        code = self._mpiexec.poll()
        gone = {rank for rank, worker in self._local_workers().items() if not processes.is_alive(worker)}
        self._turn(0)  # only now: a worker that is gone has nothing more to say
        lost = gone.intersection(self._ranks.running())
        self._progress.explain(
            "ending " + ("all processes" if code is None else f"after mpiexec, whose status is {code}")
        )
        _end_all(self._settings)
        self._turn(0)  # what the workers wrote last
        self._shared_memory.remove()
        self._lender.close()
        if self._ranks.all_well():
            return 0
        if self._stopped_by is not None:
            return 128 + self._stopped_by
        if deserted:
            raise CollectiveError(f"{deserted}{self._logs()}")
        raise self._cause(code, lost)

    def _start(self) -> None:
        self._progress.explain(f"starting {self._settings.size} ranks: {shlex.join(self._command)}")
        guard = [sys.executable, "-m", "matexrun.launch.guard", str(os.getpid()), "--"]
        with open(self._mpiexec_output, "wb") as messages:
            self._mpiexec = subprocess.Popen(
                [*guard, *self._command],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                start_new_session=True,  # Ctrl-C in the terminal is for us to pass on
            )

    def _turn(self, seconds: float) -> None:
        """Wait up to `seconds` while serving the workers, then take note of all that has happened."""
        self._lender.wait(seconds)
        now = time.monotonic()
        for event in self._receiver.poll():
            self._ranks.see(event, now)
            self._progress.show(event)
            if event.name == "claimed" and event.host == socket.gethostname():
                self._shared_memory.note(self._ranks.process(event.rank))
        while self._signals:
            self._handle(self._signals.pop(0))
        if self._stopped_by is not None:
            self._pass_on_ending()

    def _is_over(self) -> bool:
        now = time.monotonic()
        if self._stopped_by is not None:
            return now > self._stop_at or not self._ranks.running() or self._ranks.stuck()
        return bool(self._ranks.failure() or self._ranks.deserted(now) or self._ranks.all_well())

    def _handle(self, signum: int) -> None:
        if signum in _PASSED_ON:
            self._send(signum, self._local_workers().values())
        elif self._stopped_by is None:
            self._stopped_by = signum
            self._stop_at = time.monotonic() + GRACE
            say(f"{signal_name(signum)}: the ranks have {GRACE:.0f} s to end; the same again ends them at once")
        else:
            self._stop_at = 0.0

    def _pass_on_ending(self) -> None:
        """To each worker once, also to those that have started since. A rank sees HUP as TERM: workers use HUP."""
        signum = signal.SIGINT if self._stopped_by == signal.SIGINT else signal.SIGTERM
        new = set(self._local_workers().values()) - self._told
        self._told |= new
        self._send(signum, new)

    def _local_workers(self) -> dict[int, int]:
        return self._ranks.workers(socket.gethostname())

    def _send(self, signum: int, workers: Iterable[int]) -> None:
        for worker in workers:
            processes.send(worker, signum)

    def _cause(self, mpiexec_code: int | None, lost: set[int]) -> RankFailed:
        """What ended a job in which no rank deserted.

        mpiexec_code: its exit code where it ended by itself, -N for signal N.  lost: ranks whose workers died silently.
        """
        failure = self._ranks.failure()
        if failure is not None and not failure.consequence:
            return RankFailed(f"{failure}{self._evidence(failure)}", failure.status or 1)
        if len(lost) == 1 < self._settings.size:  # where there are more, mpiexec has killed some
            return RankFailed(f"rank {lost.pop()} was lost: its worker was killed{self._logs()}", 137)
        if failure is not None and (mpiexec_code is None or mpiexec_code >= 0):
            return RankFailed(f"{failure}{self._evidence(failure)}", failure.status or 1)
        return self._mpiexec_failure(mpiexec_code or 0)

    def _evidence(self, failure: Failure) -> str:
        """What there is to see of a failure: its traceback, or the last lines of its log, and where the log is."""
        path = output.log_path(self._settings.log_dir, failure.rank)
        has_log = failure.rank != 0 and os.path.exists(path)
        text = failure.traceback or (output.tail(path) if has_log else "")
        parts = [text.rstrip("\n")] if text.strip() else []
        if has_log:
            parts.append(f"matexrun: the output of rank {failure.rank} is in {path}")
        return "".join(f"\n{part}" for part in parts)

    def _logs(self) -> str:
        return f"\nmatexrun: the output of the ranks other than 0 is in {self._settings.log_dir}"

    def _mpiexec_failure(self, code: int) -> RankFailed:
        running, started = self._ranks.running(), self._ranks.started()
        if running:
            when = f"while these ranks were still running: {', '.join(map(str, running))}"
            advice = f"a rank has called MPI_Abort, or a worker was killed{self._logs()}"
        elif started:
            when = f"after only {len(started)} of {self._settings.size} ranks had run"
            advice = "`matexrun -vv` shows what each rank does"
        else:
            when = "before any rank started"
            advice = "`matexrun --doctor` checks MPI, its mpiexec and a run of 2 ranks"
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with status {code}"
        said = output.tail(self._mpiexec_output).strip()
        message = f"{os.path.basename(self._command[0])} {how} {when}" + (f"; it said:\n{said}" if said else "")
        return RankFailed(f"{message}\nmatexrun: {advice}", exit_status(code) or 1)
