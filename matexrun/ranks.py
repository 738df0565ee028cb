"""Which rank is this process? The table of variables that MPI launchers set before MPI_Init; the first match wins.

Inside a Slurm allocation the SLURM_* variables describe mpiexec's own proxy, so MPI's variables come first, and Slurm's
count only within a step: the batch script itself also carries SLURM_PROCID=0. No MPI is imported here.
"""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Rank:
    """rank of size in the job, local_rank of local_size on this node (0 and 1 where the launcher does not say)."""

    rank: int
    size: int
    local_rank: int = 0
    local_size: int = 1


_TABLE = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID", None),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", None),
)


def from_launcher(env: Mapping[str, str]) -> Rank | None:
    """The rank that mpiexec or srun gave this process, or None where neither started it."""
    for rank, size, local_rank, local_size in _TABLE:
        if rank not in env or size not in env or (rank.startswith("SLURM") and "SLURM_STEP_ID" not in env):
            continue
        return Rank(
            int(env[rank]),
            int(env[size]),
            int(env.get(local_rank, 0)),
            int(env.get(local_size or "", 0)) or _tasks_on_node(env) or 1,
        )
    return None


def _tasks_on_node(env: Mapping[str, str]) -> int:
    """Ranks on this node from SLURM_STEP_TASKS_PER_NODE, which reads like `5,1(x2)`; 0 where it is not set."""
    counts = []
    for part in filter(None, env.get("SLURM_STEP_TASKS_PER_NODE", "").split(",")):
        count, _, times = part.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    node = int(env.get("SLURM_NODEID", 0))
    return counts[node] if node < len(counts) else 0


def scrub(env) -> None:
    """Take the variables that make a process an MPI rank out of `env`, so that children are not ranks."""
    prefixes = ("PMI_", "PMIX_", "OMPI_", "PRTE_", "MPI_LOCAL", "HYDI_", "HYDRA_")
    for name in [name for name in env if name.startswith(prefixes)]:
        del env[name]
