"""Real jobs under a real mpiexec, with each MPI there is an environment for."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import environments
import pytest

# A shell that starts the tests in the background ignores SIGINT, and children inherit that: Ctrl-C would do nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)

SCRIPTS = Path(__file__).parent / "scripts"
REPOSITORY = Path(__file__).parents[2]


def processes_with(text: str) -> list[str]:
    """Command lines of all living processes, apart from this one, that contain `text`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command and int(pid) != os.getpid():
            found.append(f"{pid}: {command}")
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until(condition, seconds: float, what: str):
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"{what} took more than {seconds} s"
        time.sleep(0.02)
    return answer


class Job:
    """`matexrun` as a running process, with a script whose argument `folder` marks all of the job's processes."""

    def __init__(self, python: str, folder: Path, script: str, args, options=(), **popen):
        self.folder = folder
        self.logs = folder / "logs"
        popen = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | popen
        self.process = subprocess.Popen(
            [python, "-m", "matexrun", "-n", "3", "--log-dir", str(self.logs), *options]
            # By /proc, whose files all ranks write; others are written by rank 0 alone.
            + [str(SCRIPTS / script), f"/proc/self/root{folder}", *map(str, args)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            cwd=folder,
            text=True,
            **popen,
        )

    def wait_for_event(self) -> None:
        """Until the script has left the file `now`."""

        def happened():
            return self.event.exists() or self.process.poll() is not None

        wait_until(happened, 60, "the start of the job")
        assert self.event.exists(), self.process.communicate()

    @property
    def event(self) -> Path:
        return self.folder / "now"

    def pid(self, rank: int) -> int:
        return int((self.folder / f"pid-{rank}").read_text())

    def end(self, within: float = 5.0) -> "Job":
        """Wait for its end and check what must be true of every end: in time, and nothing left behind."""
        self.wait_for_event()
        self.stdout, self.stderr = self.process.communicate(timeout=60)
        took = time.time() - self.event.stat().st_mtime
        self.status = self.process.returncode
        assert processes_with(str(self.folder)) == []
        assert took < within, f"ended {took:.1f} s after the event: {self.stderr}"
        return self


# For tests of what matexrun does in the same way with every MPI: once is enough.
any_mpi = pytest.mark.parametrize("python", environments.PYTHONS[:1], ids=["any"], indirect=True)


@pytest.fixture(params=environments.PYTHONS, ids=environments.name)
def python(request):
    return environments.existing(request.param)


@pytest.fixture
def start(python, tmp_path):
    """start(script, *args, options=(), **popen): a Job, ended at the latest with the test."""
    jobs = []

    def start(script, *args, **kwargs):
        jobs.append(Job(python, tmp_path, script, args, **kwargs))
        return jobs[-1]

    yield start
    for job in jobs:
        job.process.kill()
    for _ in range(2):  # whatever a failed test has left, which may still fork
        for line in processes_with(str(tmp_path)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.partition(":")[0]), signal.SIGKILL)
    for job in jobs:
        job.process.communicate(timeout=10)
