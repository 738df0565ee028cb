"""A worker as mpiexec starts it, with a real child, but without MPI: rank 1 of 2, as Hydra's variables say."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from matexrun.launch.events import Receiver
from matexrun.settings import Settings

REPOSITORY = Path(__file__).parents[2]
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


class Worker:
    def __init__(self, folder, command, env, settings=None, prefix=()):
        self.logs = folder / "logs"
        self.job_dir = folder / "job"
        self.job_dir.mkdir()
        settings = Settings(
            job="j", size=2, seed=5, job_dir=str(self.job_dir), log_dir=str(self.logs), **settings or {}
        )
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MATEXRUN_", "PMI"))}
        self._receiver = Receiver(str(self.job_dir))
        self.events = []
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "matexrun.launch.worker", "--", *command],
            env={**inherited, "PYTHONPATH": str(REPOSITORY), **settings.to_env(), **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, name):
        deadline = time.monotonic() + 30
        while name not in [event.name for event in self.events]:
            assert time.monotonic() < deadline, f"no event {name} in {self.events}"
            time.sleep(0.02)
            self.events += self._receiver.poll()
        return next(event.fields for event in self.events if event.name == name)

    def end(self):
        """Its exit code, with what it and the rank have said."""
        self.stdout, self.stderr = self.process.communicate(timeout=30)
        self.events += self._receiver.poll()
        return self.process.returncode

    @property
    def exited(self):
        return next(event.fields for event in self.events if event.name == "exited")

    @property
    def log(self):
        return (self.logs / "rank-1.log").read_text()


@pytest.fixture
def start(tmp_path):
    workers = []

    def start(code, python=(sys.executable,), env=(), settings=None, prefix=()):
        workers.append(Worker(tmp_path, [*python, "-c", code], {**HYDRA, **dict(env)}, settings, prefix))
        return workers[-1]

    yield start
    for worker in workers:
        worker.process.kill()
        worker.process.communicate()


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_ends(pid):
    deadline = time.monotonic() + 5
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.02)


def test_a_rank_that_ends_well(start):
    worker = start("import os, sys; print('to the log'); print('this too', file=sys.stderr)")
    assert worker.end() == 0
    assert [event.name for event in worker.events] == ["started", "activated", "exited"]
    assert worker.exited == {"status": 0, "problem": None, "asked": False}
    assert worker.log == "to the log\nthis too\n"
    assert (worker.stdout, worker.stderr) == ("", "")


@pytest.mark.parametrize(
    ("code", "status", "problem"),
    [
        ("import sys; sys.exit(3)", 3, "failed with status 3"),
        ("import os; os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL (status 137)"),
        ("import os; os.kill(os.getpid(), 11)", 139, "was killed by SIGSEGV (status 139)"),
        ("raise RuntimeError", 1, "failed with status 1"),
    ],
)
def test_a_rank_that_fails_takes_its_worker_along(start, code, status, problem):
    worker = start(code)
    assert worker.end() == -signal.SIGKILL
    assert worker.exited == {"status": status, "problem": problem, "asked": False}


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_python_that_keeps_matexrun_out(start, option):
    worker = start("pass", python=(sys.executable, option))
    assert worker.end() == -signal.SIGKILL
    assert worker.exited["problem"].startswith("ran without matexrun in it")


def test_a_program_that_cannot_be_started(start):
    worker = start("pass", python=("/no/such/python",))
    assert worker.end() == -signal.SIGKILL
    assert worker.exited["status"] == 127
    assert worker.wait_for("failed")["traceback"] == "cannot start /no/such/python: No such file or directory\n"


def test_the_process_of_the_rank(start, tmp_path):
    core = min(os.sched_getaffinity(0))
    code = f"""
import json, os, signal, sys
json.dump({{
    "pid": os.getpid(), "told": PID, "cores": sorted(os.sched_getaffinity(0)), "stdin": sys.stdin.read(),
    "pgid": os.getpgid(0), "int": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "blocked": len(signal.pthread_sigmask(0, [])),
    "hash": os.environ["PYTHONHASHSEED"],
}}, open("/proc/self/root{tmp_path}/seen", "w"))
""".replace("PID", "os.environ['MATEXRUN_PID']")
    here = {"node": "here", "cores": [core, 100_000]}
    layout = json.dumps([{**here, "node": "there"}, here])  # of cores that are not there, none is asked for
    worker = start(code, settings={"layout": layout})
    assert worker.end() == 0, worker.log
    seen = json.loads((tmp_path / "seen").read_text())
    pid = worker.wait_for("started")["pid"]
    assert seen == {
        "pid": pid, "told": str(pid), "cores": [core], "stdin": "", "pgid": pid, "int": True, "term": True,
        "blocked": 0, "hash": "5",
    }  # fmt: skip


def test_reports_are_passed_on(start):
    code = """
import os
from matexrun import reports
os.write(int(os.environ.get("MATEXRUN_REPORT_FD") or reports._fd), b'not json\\n[1]\\n{"event": "war')
os.write(int(os.environ.get("MATEXRUN_REPORT_FD") or reports._fd), b'ning", "message": "m"}\\n')
reports.send("claimed", size=2)
"""
    worker = start(code)
    assert worker.end() == -signal.SIGKILL
    names = [event.name for event in worker.events]
    assert names == ["started", "activated", "warning", "claimed", "exited"]
    assert worker.exited["problem"].startswith("ended with status 0 in the middle of the job")


def test_a_rank_that_closes_its_end_of_the_reports_costs_no_time(start):
    worker = start("import os, time; os.closerange(3, 100); time.sleep(1)")
    before = os.times()
    assert worker.end() == 0
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 0.9


def test_a_rank_that_hangs_after_its_failure_ends_with_the_status_it_announced(start):
    worker = start("from matexrun import reports; import time; reports.send('failed', status=4); time.sleep(60)")
    assert worker.end() == -signal.SIGKILL
    assert worker.exited == {"status": 4, "problem": "failed with status 4", "asked": False}


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_are_passed_on_once(start, signum):
    code = f"""
import signal, sys, time
got = []
signal.signal({int(signum)}, lambda *_: got.append(1))
from matexrun import reports
reports.send("waiting")
deadline = time.monotonic() + 20
while not got and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(0.3)
print(len(got), flush=True)
"""
    worker = start(code)
    worker.wait_for("waiting")
    os.kill(worker.process.pid, signum)
    assert worker.end() == 0
    assert worker.log == "1\n"
    assert worker.exited["asked"] == (signum in (signal.SIGTERM, signal.SIGINT))


def test_a_rank_that_was_told_to_end_does_not_take_the_others_down(start):
    worker = start("import time; from matexrun import reports; reports.send('waiting'); time.sleep(60)")
    worker.wait_for("waiting")
    worker.process.terminate()
    assert worker.wait_for("exited")["status"] == 143
    assert worker.exited["asked"]
    time.sleep(0.5)
    assert worker.process.poll() is None


CHILD = """
import subprocess, sys, time
from matexrun import reports
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
reports.send("waiting", pid=child.pid)
"""


def test_children_of_the_rank_end_with_it(start):
    worker = start(CHILD)
    assert worker.end() == 0
    assert not is_running(worker.wait_for("waiting")["pid"])


def test_the_rank_dies_with_its_worker(start):
    worker = start(CHILD + "time.sleep(60)")
    child = worker.wait_for("waiting")["pid"]
    worker.process.kill()
    assert_ends(worker.wait_for("started")["pid"])
    os.kill(child, signal.SIGKILL)  # the launcher's part


def test_the_worker_and_all_below_die_with_its_parent(start):
    parent = [sys.executable, "-c", "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"]
    started = start(CHILD + "time.sleep(60)", prefix=parent)
    pids = {*started.wait_for("started").values(), started.wait_for("waiting")["pid"]}
    assert all(map(is_running, pids))
    started.process.kill()
    for pid in pids:
        assert_ends(pid)


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        (
            {"PMI_SIZE": "1", "PMI_RANK": "0"},
            "could not start: 2 ranks were asked for, but mpiexec made this one rank 0",
        ),
        ({}, None),
    ],
)
def test_the_size_must_be_what_was_asked_for(start, env, problem):
    worker = start("pass", env=env)
    assert worker.end() == (-signal.SIGKILL if problem else 0)
    assert (worker.exited["problem"] or "").startswith(problem or "")


def test_without_a_launcher(tmp_path):
    worker = Worker(tmp_path, [sys.executable, "-c", "pass"], {})
    assert worker.end() == 1
    assert worker.stderr.startswith("matexrun worker: ") and worker.stderr.count("\n") == 1


def test_by_hand():
    env = {name: value for name, value in os.environ.items() if not name.startswith("MATEXRUN_")}
    answer = subprocess.run(
        [sys.executable, "-m", "matexrun.launch.worker"], env=env, cwd=REPOSITORY, capture_output=True, text=True
    )
    assert answer.returncode == 1
    assert "not started by matexrun" in answer.stderr


def test_an_old_log_is_emptied_and_made_private(start, tmp_path):
    (tmp_path / "logs").mkdir(mode=0o755)
    (tmp_path / "logs" / "rank-1.log").write_text("old " * 100)
    worker = start("print('new')")
    assert worker.end() == 0
    assert worker.log == "new\n"
    assert stat.S_IMODE((tmp_path / "logs" / "rank-1.log").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o755  # the user's own folder


def test_a_pipe_in_place_of_the_log(start, tmp_path):
    (tmp_path / "logs").mkdir()
    os.mkfifo(tmp_path / "logs" / "rank-1.log")
    worker = start("pass")
    assert worker.end() == -signal.SIGKILL
    assert "could not start" in worker.exited["problem"] and "rank-1.log" in worker.exited["problem"]
