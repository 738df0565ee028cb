"""Golden command lines per MPI flavour and version, and launchers told apart by what they say about themselves."""

import pytest

from matexrun.errors import EnvironmentError_
from matexrun.launch import flavours
from matexrun.launch.command import Target, build
from matexrun.launch.flavours import INTEL, MPI, MPICH, OPENMPI
from matexrun.launch.mpi import Library, find_mpiexec
from matexrun.settings import Settings

HERE = "--mca ras ^slurm,pbs,tm,lsf,gridengine,flux --mca plm ^slurm,tm,lsf,pals --host localhost:4"
OPENMPI_5 = MPI(OPENMPI, (5, 0, 11), "/p/lib/libmpi.so.40", "/p/bin/mpiexec")
PRTERUN = MPI(OPENMPI, (5, 0, 11), "/p/lib/libmpi.so.40", "/p/bin/prterun")
OPENMPI_4 = MPI(OPENMPI, (4, 1, 4), "/usr/lib/libmpi.so.40", "/usr/bin/mpiexec.openmpi")
MPICH_5 = MPI(MPICH, (5, 0, 2), "/p/lib/libmpi.so.12", "/p/bin/mpiexec.hydra")
INTEL_2021 = MPI(INTEL, (2021, 13, 0), "/i/lib/libmpi.so.12", "/i/bin/mpiexec.hydra")


@pytest.mark.parametrize(
    "mpi, line",
    [
        (OPENMPI_5, f"/p/bin/mpiexec {HERE} --bind-to none --map-by :OVERSUBSCRIBE --stdin none -n 4"),
        (
            PRTERUN,
            f"/p/bin/prterun --personality ompi {HERE} --bind-to none --map-by :OVERSUBSCRIBE --stdin none -n 4",
        ),
        (OPENMPI_4, f"/usr/bin/mpiexec.openmpi {HERE} --bind-to none --oversubscribe --stdin none -n 4"),
        (MPICH_5, "/p/bin/mpiexec.hydra -launcher fork -hosts localhost -n 4"),
        (INTEL_2021, "/i/bin/mpiexec.hydra -launcher fork -hosts localhost -n 4"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_arguments(mpi, line):
    assert flavours.arguments(mpi, 4) == line.split(" ")


@pytest.mark.parametrize(
    "mpi, root, expected",
    [
        (OPENMPI_5, False, {}),
        (OPENMPI_5, True, {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}),
        (OPENMPI_4, True, {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}),
        (PRTERUN, False, {"OPAL_PREFIX": "/p"}),
        (
            PRTERUN,
            True,
            {
                "OPAL_PREFIX": "/p",
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "PRTE_ALLOW_RUN_AS_ROOT": "1",
                "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            },
        ),
        (MPICH_5, True, {}),
        (INTEL_2021, True, {"I_MPI_PIN": "0"}),
    ],
    ids=lambda value: str(value)[:20],
)
def test_environment(mpi, root, expected):
    assert flavours.environment(mpi, root) == expected


def test_the_whole_command_of_a_script():
    settings = Settings(job="j", size=2, seed=7, job_dir="/tmp/j")
    command = build(Target("train.py", ("--epochs", "3", "-n", "7", "--", "a b")), settings, MPICH_5, "/p/bin/python")
    assert command.argv == [
        *("/p/bin/mpiexec.hydra", "-launcher", "fork", "-hosts", "localhost", "-n", "2"),
        *("/p/bin/python", "-m", "matexrun.launch.worker", "--"),
        *("/p/bin/python", "train.py", "--epochs", "3", "-n", "7", "--", "a b"),
    ]
    assert command.added == settings.to_env()
    assert command.environment({"HOME": "/h", "MATEXRUN_SEED": "1"})["HOME"] == "/h"
    assert command.environment({"HOME": "/h", "MATEXRUN_SEED": "1"})["MATEXRUN_SEED"] == "7"


def test_the_whole_command_of_a_module_without_mpi():
    settings = Settings(job="j", size=64, seed=7)
    command = build(Target("pkg.train", ("-v",), is_module=True), settings, None, "/p/bin/python")
    assert command.argv == [
        *("mpiexec", "-n", "64", "/p/bin/python", "-m", "matexrun.launch.worker", "--"),
        *("/p/bin/python", "-m", "pkg.train", "-v"),
    ]


# What the launchers print for --version, shortened.
BANNERS = {
    "hydra": "HYDRA build details:\n    Version:                                 4.0.2\n",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240515\n",
    "openmpi 5": "mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n",
    "openmpi 4": "mpiexec (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n",
    "other": "mpiexec: unknown option --version\n",
}


def install(folder, **launchers):
    """Executables in `folder`/bin that print a banner; `_` in a name stands for a dot."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    for name, banner in launchers.items():
        file = folder / "bin" / name.replace("_", ".")
        file.write_text(f"#!/bin/sh\necho '{BANNERS[banner]}'\n")
        file.chmod(0o755)
    return folder / "bin"


def library(folder, flavour, version, path="lib/libmpi.so"):
    return Library("4.1.2", flavour, version, str(folder / path))


def path(*folders):
    return {"PATH": ":".join(map(str, (*folders, "/usr/bin", "/bin")))}


def test_the_launcher_beside_the_library_wins_over_path(tmp_path):
    beside = install(tmp_path / "own", mpiexec="hydra")
    other = install(tmp_path / "other", mpiexec="hydra")
    assert find_mpiexec(library(tmp_path / "own", MPICH, (4, 0)), path(other)) == str(beside / "mpiexec")


def test_a_library_in_a_nested_folder_finds_the_launcher_of_its_prefix(tmp_path):
    beside = install(tmp_path, mpiexec="intel")
    nested = library(tmp_path, INTEL, (2021, 13), "lib/release/libmpi.so.12")
    assert find_mpiexec(nested, path()) == str(beside / "mpiexec")


def test_both_packages_of_debian(tmp_path):
    bin = install(tmp_path, mpiexec="openmpi 4", mpiexec_openmpi="openmpi 4", mpiexec_mpich="hydra")
    assert find_mpiexec(library(tmp_path, OPENMPI, (4, 1, 4)), path()) == str(bin / "mpiexec.openmpi")
    assert find_mpiexec(library(tmp_path, MPICH, (4, 0, 2)), path()) == str(bin / "mpiexec.mpich")


def test_both_wheels_in_one_folder_whichever_mpiexec_was_left(tmp_path):
    hydra_left = install(tmp_path / "a", mpiexec="hydra", mpiexec_hydra="hydra", prterun="other")
    assert find_mpiexec(library(tmp_path / "a", OPENMPI, (5, 0)), path()) == str(hydra_left / "prterun")
    openmpi_left = install(tmp_path / "b", mpiexec="openmpi 5", mpiexec_hydra="hydra", prterun="other")
    assert find_mpiexec(library(tmp_path / "b", MPICH, (5, 0)), path()) == str(openmpi_left / "mpiexec.hydra")


def test_a_module_on_path(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    wrong = install(tmp_path / "x", mpiexec="openmpi 5")
    right = install(tmp_path / "y", mpiexec="hydra")
    assert find_mpiexec(library(tmp_path / "elsewhere", MPICH, (4, 0)), path(wrong, right)) == str(right / "mpiexec")


@pytest.mark.parametrize(
    "flavour, version, banner, said",
    [
        (MPICH, (5, 0, 2), "openmpi 5", "(Open MPI 5.0.11)"),
        (OPENMPI, (5, 0, 11), "hydra", "(MPICH 4.0.2)"),
        (OPENMPI, (5, 0, 11), "openmpi 4", "(Open MPI 4.1.4)"),
        (MPICH, (5, 0, 2), "intel", "(Intel MPI 2021.13)"),
        (MPICH, (5, 0, 2), "other", "(not known)"),
    ],
)
def test_a_launcher_of_another_mpi_is_refused_with_the_remedy(tmp_path, flavour, version, banner, said):
    bin = install(tmp_path, mpiexec=banner)
    with pytest.raises(EnvironmentError_) as caught:
        find_mpiexec(library(tmp_path, flavour, version), {"PATH": str(tmp_path)})
    message = str(caught.value)
    assert f"found only {bin}/mpiexec {said}" in message and f"no mpiexec of {flavour} {version[0]}" in message
    assert "pip install" in message and "MPI4PY_LIBMPI" in message


def test_no_launcher_at_all(tmp_path):
    with pytest.raises(EnvironmentError_, match="found none beside it or on PATH"):
        find_mpiexec(library(tmp_path, MPICH, (5, 0)), {"PATH": str(tmp_path)})
