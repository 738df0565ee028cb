"""Collectives between real ranks: mpiexec starts collectives_cases.py, and scripts of a few lines, in subprocesses."""

import json
import os
import pathlib
import subprocess
import sys

import environments
import pytest

pytestmark = pytest.mark.matrix

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CASES = [
    line.split()[1].split("(")[0]
    for before, line in zip(*[(HERE / "collectives_cases.py").read_text().splitlines()[skip:] for skip in (0, 1)])  # noqa: B905
    if before == "@case"
]


def mpirun(ranks, arguments, python=sys.executable, timeout=150, **options):
    """The finished process of `mpiexec -n ranks python *arguments`; where it hangs it is ended, with its ranks."""
    mpiexec = pathlib.Path(python).parent / "mpiexec"
    command = [str(mpiexec), "-n", str(ranks)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MATEXRUN_")}
    env |= {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    if python == environments.OPENMPI:
        command += ["--oversubscribe", "--bind-to", "none"]
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    env |= options.pop("env", {})
    process = subprocess.Popen(
        [*command, python, *arguments],
        env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        **options,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()  # not SIGKILL, which no mpiexec can hand on to its ranks
        output, _ = process.communicate(timeout=20)
        output += f"\n(killed after {timeout} s)"
    return subprocess.CompletedProcess(command, process.returncode, output)


def job(ranks, collectives, python=sys.executable, cases=()):
    """{case: [result of each rank that came to its end]}, and the process."""
    process = mpirun(ranks, [str(HERE / "collectives_cases.py"), collectives, *cases], python)
    results = {}
    for line in process.stdout.splitlines():
        if line.startswith("RESULT "):
            result = json.loads(line.removeprefix("RESULT "))
            results.setdefault(result["case"], []).append(result)
    return results, process


JOBS = {
    "2-ffi": (2, "ffi", sys.executable),
    "3-ffi": (3, "ffi", sys.executable),
    "3-numpy": (3, "numpy", sys.executable),
    "openmpi-3-auto": (3, "auto", environments.PYTHONS[1]),
}
_done = {}


def results_of(name):
    ranks, collectives, python = JOBS[name]
    if name not in _done:
        _done[name] = job(ranks, collectives, environments.existing(python))
    return _done[name]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", JOBS)
def test_case(name, case):
    results, process = results_of(name)
    errors = [f"rank {result['rank']}: {result['error']}" for result in results.get(case, []) if result["error"]]
    assert not errors, "\n".join(errors)
    assert len(results.get(case, [])) == JOBS[name][0], process.stdout[-3000:]


@pytest.mark.parametrize("name", JOBS)
def test_all_ranks_end_together_and_well(name):
    _, process = results_of(name)
    assert process.returncode == 0, process.stdout[-3000:]


def test_results_are_the_same_bits_in_every_job_and_backend():
    case = "ranks_hold_the_same_bits_and_repeat_them"
    again, _ = job(3, "ffi", cases=[case])
    values = [
        result["value"]
        for results in (results_of("3-ffi")[0], results_of("3-numpy")[0], again)
        for result in results[case]
    ]
    assert len(values) == 9 and len(set(values)) == 1


def script(text, ranks=2, **options):
    return mpirun(ranks, ["-c", text], timeout=60, **options)


def test_a_world_of_another_size_is_an_error_with_the_remedy():
    process = script("from matexrun.collectives import world; world.init(3)")
    assert process.returncode
    assert "3 ranks were asked for, but MPI says that this is rank" in process.stdout and "of 2" in process.stdout
    assert "mpiexec" in process.stdout and "matexrun --doctor" in process.stdout


def test_the_script_keeps_its_own_mpi4py():
    for order in ("first", "last"):
        process = script(
            f"""
if {order == "first"}: from mpi4py import MPI
from matexrun.collectives import world
w = world.init(2)
assert world.init(2) is w is world.current()
if {order == "last"}: from mpi4py import MPI
request = MPI.COMM_WORLD.irecv(source=1 - w.rank)  # pending on COMM_WORLD while matexrun communicates
assert w.any(w.rank == 1) and w.broadcast_object(w.rank) == 0
MPI.COMM_WORLD.send(w.rank, dest=1 - w.rank)
assert request.wait() == 1 - w.rank == MPI.COMM_WORLD.allreduce(w.rank) - w.rank
assert w.finish() and w.finish() and MPI.Is_finalized()
"""
        )
        assert process.returncode == 0, process.stdout


def test_too_few_thread_guarantees_are_an_error():
    process = script(
        "import mpi4py; mpi4py.rc.thread_level = 'funneled'; from mpi4py import MPI\n"
        "from matexrun.collectives import world; world.init(2)"
    )
    assert process.returncode and "MPI_THREAD_MULTIPLE" in process.stdout


def test_finish_waits_for_all_ranks_without_burning_a_core():
    process = script(
        """
import time
from matexrun.collectives import world
w = world.init(2)
w.barrier()
wall, cpu = time.monotonic(), time.process_time()
if w.rank == 0:
    assert not w.finish(timeout=0.2)
else:
    time.sleep(2)
assert w.finish()
wall, cpu = time.monotonic() - wall, time.process_time() - cpu
assert wall > 1.9, wall
assert cpu < 0.7, cpu
"""
    )
    assert process.returncode == 0, process.stdout


def test_a_long_wait_is_reported_and_its_end_too():
    reader, writer = os.pipe()
    process = script(
        """
import os, time
from matexrun import reports
from matexrun.collectives import world
w = world.init(2)
w.barrier()
if w.rank == 1: time.sleep(3)
w.barrier()
time.sleep(1)
w.finish()
""",
        env={"MATEXRUN_REPORT_FD": str(writer)},
        pass_fds=[writer],
    )
    os.close(writer)
    with open(reader) as pipe:
        events = [json.loads(line) for line in pipe]
    assert process.returncode == 0, process.stdout
    assert events == [{"event": "waiting", "what": "barrier"}, {"event": "resumed"}]
