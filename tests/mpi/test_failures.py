"""However a job ends: the right status, soon, the cause shown once, and no process left (`Job.end` looks for both)."""

import os
import pty
import re
import signal
import stat
import time
from pathlib import Path

import environments
import pytest
from conftest import any_mpi, parent_of, processes_with, wait_until

ENDINGS = [
    ("raise", 0, 1, "failed with status 1"),
    ("raise", 1, 1, "failed with status 1"),
    ("sys.exit", 0, 3, "failed with status 3"),
    ("os._exit", 1, 3, "failed with status 3"),
    ("os._exit(0)", 0, 1, "ended with status 0 in the middle of the job"),
    ("os._exit(0)", 1, 1, "ended with status 0 in the middle of the job"),
    ("SIGKILL", 0, 137, r"was killed by SIGKILL \(status 137\)"),
    ("SIGKILL", 1, 137, r"was killed by SIGKILL \(status 137\)"),
    ("SIGSEGV", 1, 139, r"was killed by SIGSEGV \(status 139\)"),
]
# What an mpiexec can tell apart: a status, none, and a signal. All of them with one MPI, these with every other.
TOLD_APART = [("raise", 1), ("os._exit(0)", 0), ("SIGKILL", 0)]


@pytest.mark.parametrize(
    ("python", "how", "rank", "status", "problem"),
    [
        pytest.param(python, *ending, id="-".join([environments.name(python), *map(str, ending[:2])]))
        for python in environments.PYTHONS
        for ending in ENDINGS
        if python == environments.PYTHONS[0] or ending[:2] in TOLD_APART
    ],
    indirect=["python"],
)
def test_a_failing_rank_ends_the_job(start, rank, how, status, problem):
    job = start("ending.py", rank, how).end()
    assert job.status == status
    assert re.findall(r"^matexrun: rank \d on \S+ (?:failed|was|ended).*", job.stderr, re.M) == re.findall(
        rf"^matexrun: rank {rank} on \S+ {problem}.*", job.stderr, re.M
    )
    assert job.stderr.count("matexrun: rank") == 1
    assert (job.stdout + job.stderr).count("RuntimeError: on purpose") == (how == "raise")
    assert ("logs/rank-1.log" in job.stderr) == (rank == 1)


@any_mpi
def test_a_rank_that_hangs_on_its_way_out(start):
    job = start("ending.py", 1, "hang-on-exit").end()
    assert job.status == 1
    assert job.stderr.count("RuntimeError: on purpose") == 1


def test_abort_of_mpi(start):
    job = start("ending.py", 1, "abort").end()
    assert job.status == 5
    assert len(re.findall("^matexrun: (?:rank 1 on|mpiexec)", job.stderr, re.M)) == 1


def test_a_rank_that_leaves_while_others_wait(start):
    job = start("ending.py", 1, "leave").end()
    assert job.status == 1
    assert (
        len(re.findall("rank 1 on .* has left the script, while rank [02] on .* waits .* in barrier", job.stderr)) == 1
    )


@any_mpi
def test_waiting_for_a_slow_rank_is_no_failure(start):
    job = start("ending.py", 1, "late").end(within=15)
    assert (job.status, job.stderr) == (0, "")


def test_ranks_that_leave_at_different_times(start):
    job = start("leaving.py").end(within=15)
    assert (job.status, job.stderr) == (0, "")


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_launcher(start, signum, status):
    job = start("ending.py", 1, "sleep")
    job.wait_for_event()
    job.process.send_signal(signum)
    job.end(within=7)  # 5 s for ranks that cannot hear it, because they are inside MPI
    assert job.status == status
    assert job.stderr.count("matexrun: ") == 1


@any_mpi
def test_a_second_interrupt_ends_ranks_that_ignore_it_at_once(start):
    job = start("ending.py", -1, "ignore")
    job.wait_for_event()
    job.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert job.process.poll() is None
    job.process.send_signal(signal.SIGINT)
    assert job.end(within=3).status == 130


def test_ranks_have_time_to_save_their_work(start):
    job = start("ending.py", -1, "save")
    job.wait_for_event()
    wait_until(lambda: all((job.folder / f"pid-{rank}").exists() for rank in range(3)), 10, "the start")
    job.process.terminate()
    assert job.end().status == 143
    assert (job.folder / "saved").read_text() == "all of it"


@any_mpi
def test_ranks_that_all_end_well_when_told(start):
    job = start("ending.py", -1, "end-well")
    job.wait_for_event()
    job.process.terminate()
    assert job.end().status == 0


def test_death_of_the_launcher(start):
    job = start("ending.py", 1, "sleep")
    job.wait_for_event()
    job.process.kill()
    job.process.communicate()
    wait_until(lambda: not processes_with(str(job.folder)), 5, "the end of all processes")


@pytest.mark.parametrize("victim", ["mpiexec", "guard"])
def test_death_of_mpiexec(start, victim):
    job = start("ending.py", 1, "sleep")
    job.wait_for_event()
    mpiexec, guard = job.pid(1), parent_of(job.pid(1))
    while parent_of(guard) != job.process.pid:
        mpiexec, guard = guard, parent_of(guard)
    os.kill(mpiexec if victim == "mpiexec" else guard, signal.SIGKILL)
    job.end()
    assert job.status == 137
    assert len(re.findall(r"^matexrun: \S+ was killed by SIGKILL while these ranks", job.stderr, re.M)) == 1


def test_death_of_a_worker(start):
    job = start("ending.py", 1, "sleep")
    job.wait_for_event()
    os.kill(parent_of(job.pid(1)), signal.SIGKILL)
    job.end()
    assert job.status != 0
    assert len(re.findall("rank 1 was lost: its worker was killed|a worker was killed", job.stderr)) == 1


def test_no_shared_memory_or_session_folder_of_mpi_is_left(start):
    job = start("ending.py", 1, "sleep")
    job.wait_for_event()
    maps = Path(f"/proc/{job.pid(1)}/maps").read_text()
    shared = {Path(path) for path in re.findall(r"^\S+ rw.s .* (/.*)", maps, re.M)}
    files = {path for path in shared if path.exists()}  # the others have been unlinked while in use
    assert files
    os.kill(job.pid(1), signal.SIGKILL)
    assert job.end().status == 137
    assert {path for path in files if path.exists()} == set()


@any_mpi
def test_rank_0_prints_and_others_write_private_logs(start):
    job = start("ending.py", 1, "late").end(within=15)
    assert job.stdout == "rank 0 says hello\n"
    assert sorted(path.name for path in job.logs.iterdir()) == ["rank-1.log", "rank-2.log"]
    assert (job.logs / "rank-2.log").read_text() == "rank 2 says hello\n"
    assert stat.S_IMODE(job.logs.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in job.logs.iterdir()} == {0o600}


@any_mpi
def test_rank_0_sees_the_terminal(start):
    ours, theirs = pty.openpty()
    job = start("terminal.py", stdout=theirs)
    os.close(theirs)
    text = b""
    try:
        while b"\n" not in text:
            text += os.read(ours, 1024)
    finally:
        os.close(ours)
    assert text.strip() == b"stdout is a terminal: True, stdin: b''"
    assert job.end(within=15).status == 0


@any_mpi
@pytest.mark.parametrize("link", ["logs", "logs/rank-2.log"])
def test_logs_never_follow_links(start, tmp_path, link):
    elsewhere = tmp_path / "elsewhere"
    if link == "logs":
        elsewhere.mkdir()
    else:
        (tmp_path / "logs").mkdir()
        elsewhere.write_text("precious")
    (tmp_path / link).symlink_to(elsewhere)
    (tmp_path / "now").touch()
    job = start("ending.py", 1, "late").end(within=30)
    assert job.status == 1
    assert len(re.findall(rf"^matexrun: rank \d on \S+ could not start: \S*{link} is a link", job.stderr, re.M)) == 1
    assert list(elsewhere.iterdir()) == [] if link == "logs" else elsewhere.read_text() == "precious"
