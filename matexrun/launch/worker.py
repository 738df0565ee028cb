"""The worker: one per rank, started by mpiexec as `python -m matexrun.launch.worker -- python script args…`.

It is the parent of the rank's Python. It gives the rank its cores, environment and output, passes on its reports and
signals, and judges its end. MPI launchers do not reliably end a job in which one rank has failed, and their exit status
is not the rank's; what ends every job is that the failing rank's worker, once the failure is safely reported, kills its
own processes and itself. Standard library only: it runs N times and must cost nothing.

Lifetimes: the worker dies when mpiexec's process above it dies, the rank when its worker dies, and the rank's own
children when the worker ends or, if that was killed, when the launcher clears up.
"""

import json
import os
import select
import signal
import sys
import time
from typing import NoReturn

from matexrun import settings as names
from matexrun.errors import EnvironmentError_, MatexrunError, UsageError
from matexrun.launch import output, processes
from matexrun.launch.environment import rank_environment
from matexrun.launch.events import Sender
from matexrun.launch.verdict import exit_status, problem
from matexrun.ranks import Rank, from_launcher
from matexrun.settings import Settings

# A rank that has reported its failure may hang on its way out (a thread in MPI): after so many seconds it is killed.
PATIENCE_AFTER_FAILURE = 2.0
# A rank that ends badly because it was told to end does not take the others down, for they may be saving their work.
# The launcher gives them less time than this.
PATIENCE_WHEN_ASKED = 10.0

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
_ASKS_TO_END = (signal.SIGINT, signal.SIGTERM)


def main() -> int:
    """Run the rank. Returns only where it has ended well (0) or nobody can be told of an error (1)."""
    parent = os.getppid()
    processes.signal_when_parent_dies(signal.SIGHUP)
    processes.adopt_orphans()
    try:
        settings = Settings.from_env()
        me = from_launcher(os.environ)
        if me is None:
            raise EnvironmentError_(
                "the program that started this worker gave it no rank: expected mpiexec or srun (matexrun --doctor "
                "checks which one is used)"
            )
        if sys.argv[1:2] != ["--"] or len(sys.argv) < 3:
            raise UsageError("expected `python -m matexrun.launch.worker -- command…`: it is started by matexrun only")
        sender = Sender(settings.job_dir, me.rank)
    except (MatexrunError, OSError) as error:
        print(f"matexrun worker: {error}", file=sys.stderr)
        return 1
    return Worker(settings, me, sender, parent).run(sys.argv[2:])


class Worker:
    """One rank's worker, for one use."""

    def __init__(self, settings: Settings, me: Rank, sender: Sender, parent: int):
        self._settings = settings
        self._me = me
        self._events = sender
        self._parent = parent
        self._reported: set[str] = set()  # names of the events that the rank has sent
        self._unfinished = b""  # the beginning of a line of the rank's reports
        self._deadline: float | None = None  # when to kill a rank that has reported its failure
        self._announced_status: int | None = None  # what the rank said that its exit status would be
        self._asked = False  # a signal to end was passed on

    def run(self, argv: list[str]) -> int:
        """Run `argv` as the rank. Returns 0 where that ended well, and else takes the job down."""
        try:
            self._check_size()
            cores = self._take_cores()
            streams = self._streams()
        except MatexrunError as error:
            self._events.send("exited", status=error.exit_status, problem=f"could not start: {error}", asked=False)
            self._take_down()
        wakeup = self._catch_signals()
        self._reports, report_fd = os.pipe()
        env = rank_environment(os.environ, self._settings, self._me, cores, report_fd)
        self._child = self._start(argv, env, streams, report_fd)
        for fd in (report_fd, *streams):
            os.close(fd)
        self._events.send("started", pid=self._child, worker=os.getpid())
        code = self._wait(wakeup)
        if code == -signal.SIGKILL and self._announced_status is not None:
            code = self._announced_status  # we killed it ourselves, on its way out
        wrong = problem(code, self._reported)
        self._events.send("exited", status=exit_status(code), problem=wrong, asked=self._asked)
        self._kill_children()
        if wrong:
            if self._asked:
                signal.signal(signal.SIGHUP, signal.SIG_DFL)
                time.sleep(PATIENCE_WHEN_ASKED)
            self._take_down()
        return 0

    def _check_size(self) -> None:
        if self._me.size != self._settings.size:
            raise EnvironmentError_(
                f"{self._settings.size} ranks were asked for, but mpiexec made this one rank {self._me.rank} of "
                f"{self._me.size}: it does not belong to the MPI library (matexrun --doctor names both)"
            )

    def _take_cores(self) -> set[int]:
        """Bind this process, and so the rank, to the cores of its placement, as far as it may use them."""
        cores = set(self._settings.placement(self._me.rank).get("cores", ())) & os.sched_getaffinity(0)
        if cores:
            os.sched_setaffinity(0, cores)
        return cores

    def _streams(self) -> tuple[int, int]:
        if self._me.rank == 0:
            return output.borrow(self._settings.job_dir)
        log = output.open_log(self._settings.log_dir, self._me.rank)
        return log, os.dup(log)

    def _catch_signals(self) -> int:
        """Have signals written as bytes into a pipe. Returns its reading end."""
        readable, writable = os.pipe()
        os.set_blocking(readable, False)
        os.set_blocking(writable, False)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        for signum in (*_FORWARDED, signal.SIGCHLD):
            signal.signal(signum, lambda *_: None)
        return readable

    def _start(self, argv: list[str], env: dict[str, str], streams: tuple[int, int], report_fd: int) -> int:
        """Fork and exec, by hand: the new process must know its own pid, and keep the descriptors by which MPI's
        launcher talks to it."""
        everything = signal.valid_signals()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, everything)
        worker = os.getpid()
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return pid
        try:
            signal.set_wakeup_fd(-1)
            for signum in (*_FORWARDED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(signum, signal.SIG_DFL)
            processes.signal_when_parent_dies(signal.SIGKILL)
            if os.getppid() != worker:
                os._exit(1)
            os.setpgid(0, 0)  # mpiexec signals process groups: the rank must get its signals through the worker only
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(streams[0], 1)
            os.dup2(streams[1], 2)
            os.set_inheritable(report_fd, True)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.execvpe(argv[0], argv, {**env, names.PID: str(os.getpid())})
        except OSError as error:
            message = f"cannot start {argv[0]}: {error.strerror}\n"
            os.write(report_fd, (json.dumps({"event": "failed", "traceback": message, "status": 127}) + "\n").encode())
        finally:
            os._exit(127)

    def _wait(self, wakeup: int) -> int:
        """Serve the rank until it ends. Returns its exit code, -N for signal N."""
        sources = [wakeup, self._reports]
        while True:
            timeout = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            ready = select.select(sources, [], [], timeout)[0]
            if not ready:
                processes.send(self._child, signal.SIGKILL)
                self._deadline = None
            if self._reports in ready and not self._pass_on_reports():
                sources.remove(self._reports)
            if wakeup in ready:
                for signum in os.read(wakeup, 4096):
                    self._handle(signum)
                code = processes.reap().get(self._child)
                if code is not None:
                    # Children of the rank may hold the pipe open, so its end need not come: what is there counts.
                    while select.select([self._reports], [], [], 0)[0] and self._pass_on_reports():
                        pass
                    return code

    def _handle(self, signum: int) -> None:
        if signum == signal.SIGHUP and os.getppid() != self._parent:
            self._kill_children()
            self._take_down()
        if signum in _FORWARDED:
            self._asked |= signum in _ASKS_TO_END
            processes.send(self._child, signum)

    def _pass_on_reports(self) -> bool:
        """Pass on what the rank has reported. False where it has closed its end."""
        text = os.read(self._reports, 65536)
        *lines, self._unfinished = (self._unfinished + text).split(b"\n")
        for line in lines:
            try:
                report = json.loads(line)
                name = str(report.pop("event"))
            except (ValueError, KeyError, AttributeError, TypeError):
                continue  # not ours: a child of the rank has written to a descriptor that it does not know
            self._reported.add(name)
            if name == "failed" and self._announced_status is None:
                self._deadline = time.monotonic() + PATIENCE_AFTER_FAILURE
                self._announced_status = report.get("status", 1)
            self._events.send(name, **report)
        return bool(text)

    def _kill_children(self) -> None:
        processes.end(lambda: processes.descendants(os.getpid()))

    def _take_down(self) -> NoReturn:
        """End this process in the one way that makes every MPI launcher end the job."""
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("alive after SIGKILL")


if __name__ == "__main__":
    sys.exit(main())
