"""Jobs whose mpiexec itself is at fault: `job.run` with a real process in place of mpiexec."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from matexrun.settings import Settings

REPOSITORY = Path(__file__).parents[2]
RUN = """
import json, os, sys
from matexrun.launch import job
from matexrun.settings import Settings
settings = Settings.from_env()
sys.exit(job.run(json.loads(sys.argv[1]), dict(os.environ), settings))
"""


@pytest.fixture
def run(tmp_path):
    """run(command, size=…, job_dir=…): the finished launcher."""

    def run(command, size=2, job_dir=None, verbose=0):
        job_dir = job_dir or tmp_path / "job"
        job_dir.mkdir(parents=True)
        settings = Settings("j", size, 1, job_dir=str(job_dir), log_dir=str(tmp_path / "logs"), verbose=verbose)
        return subprocess.run(
            [sys.executable, "-c", RUN, json.dumps(command)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **settings.to_env()},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def python(code):
    return [sys.executable, "-c", code]


def test_an_mpiexec_that_cannot_be_executed(run):
    answer = run(["/no/such/mpiexec", "-n", "2"])
    assert answer.returncode == 127
    assert answer.stderr == (
        "matexrun: mpiexec ended with status 127 before any rank started; it said:\n"
        "cannot start /no/such/mpiexec: No such file or directory\n"
        "matexrun: `matexrun --doctor` checks MPI, its mpiexec and a run of 2 ranks\n"
    )


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("import sys; sys.exit('There are not enough slots')", 1, "There are not enough slots"),
        ("print('nothing to do')", 1, "nothing to do"),
        ("import os; os.kill(os.getpid(), 15)", 143, "was killed by SIGTERM"),
    ],
)
def test_an_mpiexec_that_starts_no_rank(run, code, status, said):
    answer = run(python(code))
    assert answer.returncode == status
    assert said in answer.stderr
    assert "before any rank started" in answer.stderr


WORKER = "import os, subprocess, sys\ndef worker(rank, size, code):\n"
WORKER += "    env = {**os.environ, 'PMI_RANK': str(rank), 'PMI_SIZE': str(size)}\n"
WORKER += "    command = [sys.executable, '-m', 'matexrun.launch.worker', '--', sys.executable, '-c', code]\n"
WORKER += "    return subprocess.Popen(command, env=env)\n"


def test_an_mpiexec_that_does_not_belong_to_the_library(run):
    """Hydra with Open MPI's library: every process is rank 0 of 1, and mpiexec ends with status 0."""
    answer = run(python(WORKER + "for one in [worker(0, 1, 'print(1)'), worker(0, 1, 'print(1)')]: one.wait()"))
    assert answer.returncode == 1
    assert answer.stderr.count("2 ranks were asked for, but mpiexec made this one rank 0 of 1") == 1
    assert answer.stdout == ""


def test_an_mpiexec_that_starts_too_few_ranks(run):
    answer = run(python(WORKER + "worker(0, 2, 'print(1)').wait()"))
    assert answer.returncode == 1
    assert "ended with status 0 after only 1 of 2 ranks had run" in answer.stderr


def test_an_mpiexec_that_does_not_end_after_its_ranks(run):
    code = "import time; ranks = [worker(rank, 2, 'print(1)') for rank in (0, 1)]; time.sleep(600)"
    answer = run(python(WORKER + code))
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "1\n", "")


def test_the_status_of_mpiexec_does_not_count_where_all_ranks_ended_well(run):
    code = "ranks = [worker(rank, 2, 'print(1)') for rank in (0, 1)]; [one.wait() for one in ranks]; sys.exit(9)"
    answer = run(python(WORKER + code))
    assert (answer.returncode, answer.stderr) == (0, "")


def test_a_warning_is_shown_once(run):
    warn = "from matexrun import reports; reports.send('warning', message='mind the gap')"
    code = f"[one.wait() for one in [worker(rank, 2, {warn!r}) for rank in (0, 1)]]"
    answer = run(python(WORKER + code))
    assert (answer.returncode, answer.stderr) == (0, "matexrun: mind the gap\n")


def test_verbose_tells_the_phases(run):
    code = "[one.wait() for one in [worker(rank, 2, 'pass') for rank in (0, 1)]]"
    answer = run(python(WORKER + code), verbose=1)
    assert answer.returncode == 0
    told = re.findall(r"^matexrun: +[\d.]+ s  (starting \d+ ranks|.*)", answer.stderr, re.M)
    assert told == [
        "starting 2 ranks",
        "all ranks have started",
        "matexrun is active in all ranks",
        "all ranks have ended",
        "ending after mpiexec, whose status is 0",
    ]


def test_a_job_folder_with_a_long_path(run, tmp_path):
    answer = run(python(WORKER + "worker(0, 1, 'print(1)').wait()"), size=1, job_dir=tmp_path / ("x" * 200) / "job")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "1\n", "")
