"""What each MPI's mpiexec must be told: one table of pure functions from a flavour to arguments and environment.

The launcher places ranks itself (cores, GPUs), so no mpiexec may bind them; nor may it count cores, read the terminal,
or leave this machine for the hosts of an allocation that it finds in its environment.
"""

import dataclasses
import os
from pathlib import Path

OPENMPI, MPICH, INTEL = "Open MPI", "MPICH", "Intel MPI"


@dataclasses.dataclass(frozen=True)
class MPI:
    """An MPI library and the launcher that belongs to it. flavour: a constant of this module; version: the library's;
    library: path of its shared object; mpiexec: path of the launcher."""

    flavour: str
    version: tuple[int, ...]
    library: str
    mpiexec: str

    def __str__(self) -> str:
        return f"{self.flavour} {'.'.join(map(str, self.version))}"


def arguments(mpi: MPI, size: int) -> list[str]:
    """The command line that starts `size` processes on this machine, up to the program that they run."""
    return [mpi.mpiexec, *_ARGUMENTS[mpi.flavour](mpi, size), "-n", str(size)]


def environment(mpi: MPI, root: bool | None = None) -> dict[str, str]:
    """Variables that mpiexec needs. root: whether it runs as the superuser, None to ask the system."""
    return _ENVIRONMENT[mpi.flavour](mpi, os.geteuid() == 0 if root is None else root)


def _is_prterun(mpi: MPI) -> bool:
    """Open MPI 5's mpiexec under its other name, which survives when another MPI overwrites bin/mpiexec."""
    return Path(mpi.mpiexec).name == "prterun"


# Without these, Open MPI takes its hosts from the scheduler's variables and starts a daemon on each of them.
_OUTSIDE_ALLOCATIONS = ["--mca", "ras", "^slurm,pbs,tm,lsf,gridengine,flux", "--mca", "plm", "^slurm,tm,lsf,pals"]


def _openmpi_arguments(mpi: MPI, size: int) -> list[str]:
    # Its own binding is one core per rank, which starves TensorFlow's threads; a rank that reads the stdin it forwards
    # never sees the end of it.
    oversubscribe = ["--map-by", ":OVERSUBSCRIBE"] if mpi.version >= (5,) else ["--oversubscribe"]
    # Only with its personality does prterun set the OMPI_COMM_WORLD_* variables that tell a process its rank.
    personality = ["--personality", "ompi"] if _is_prterun(mpi) else []
    here = [*_OUTSIDE_ALLOCATIONS, "--host", f"localhost:{size}"]
    return [*personality, *here, "--bind-to", "none", *oversubscribe, "--stdin", "none"]


def _openmpi_environment(mpi: MPI, root: bool) -> dict[str, str]:
    variables = {}
    if root:  # else it refuses; PRTE_* is what prterun itself asks for
        for prefix in ("OMPI", "PRTE") if _is_prterun(mpi) else ("OMPI",):
            variables |= {f"{prefix}_ALLOW_RUN_AS_ROOT": "1", f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if _is_prterun(mpi):  # mpiexec finds where it is installed by itself, prterun does not
        variables["OPAL_PREFIX"] = str(Path(mpi.mpiexec).parents[1])
    return variables


def _hydra_arguments(mpi: MPI, size: int) -> list[str]:
    # Left to itself it starts ranks with srun on the hosts of an allocation.
    return ["-launcher", "fork", "-hosts", "localhost"]


def _hydra_environment(mpi: MPI, root: bool) -> dict[str, str]:
    return {}


def _intel_environment(mpi: MPI, root: bool) -> dict[str, str]:
    return {"I_MPI_PIN": "0"}  # it is the one Hydra that binds unless told otherwise


_ARGUMENTS = {OPENMPI: _openmpi_arguments, MPICH: _hydra_arguments, INTEL: _hydra_arguments}
_ENVIRONMENT = {OPENMPI: _openmpi_environment, MPICH: _hydra_environment, INTEL: _intel_environment}
