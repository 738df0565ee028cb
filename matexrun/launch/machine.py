"""What this process may use of the machine it runs on: cores, their NUMA nodes, and GPUs.

Reads /proc, /sys, the affinity mask and the environment, and asks nvidia-smi; decides nothing and changes nothing.
"""

import dataclasses
import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Node:
    """A machine as a job may use it.

    cores: ordered so that neighbours in the hardware stand side by side (hyperthreads of a core, cores of a NUMA node).
    domains: number of NUMA nodes that they lie in.  gpus: as CUDA_VISIBLE_DEVICES names them.
    """

    name: str
    cores: tuple[int, ...]
    domains: int = 1
    gpus: tuple[str, ...] = ()


def this_node(env: Mapping[str, str] = os.environ) -> Node:
    """This machine, within the affinity mask and the cgroup's CPU quota of this process."""
    positions = {core: _position(core) for core in os.sched_getaffinity(0)}
    cores = sorted(positions, key=lambda core: (*positions[core], core))
    cores = cores[: max(1, math.floor(cpu_quota()))] if cpu_quota() < len(cores) else cores
    domains = len({positions[core][0] for core in cores})
    return Node(os.uname().nodename, tuple(cores), domains, visible_gpus(env))


def _position(core: int, root: Path = Path("/sys/devices/system/cpu")) -> tuple[int, int, int]:
    """(NUMA node, socket, physical core) of a core; where the kernel knows no NUMA nodes, the socket counts as one."""
    folder = root / f"cpu{core}"
    socket, physical = (_number(folder / "topology" / name) for name in ("physical_package_id", "core_id"))
    numa = next((int(entry.name[4:]) for entry in folder.glob("node[0-9]*")), socket)
    return numa, socket, physical


def _number(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0


def cpu_quota(membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> float:
    """CPUs' worth of time that the cgroups of this process allow, `inf` where they set no limit.

    The limit of every ancestor counts. Inside a container the paths of /proc/self/cgroup may be the host's and not
    exist below `root`, whose own files then hold the container's limit.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return math.inf
    quota = math.inf
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            quota = min(quota, _group_quota(folder))
            if folder == base:
                break
    return quota


def _group_quota(folder: Path) -> float:
    """The limit that one cgroup sets: `cpu.max` (version 2) or `cpu.cfs_quota_us` (version 1)."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError):  # no such file, or "max"
        return math.inf


def visible_gpus(env: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES names (numbers, UUIDs or MIG names, kept as they are), else all there are."""
    if "CUDA_VISIBLE_DEVICES" in env:
        return _usable(env["CUDA_VISIBLE_DEVICES"].split(","))
    program = shutil.which("nvidia-smi", path=env.get("PATH"))
    if program is None:
        return ()
    try:
        listing = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=60, env=dict(env))
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(re.findall(r"^GPU (\d+):", listing.stdout, re.MULTILINE)) if listing.returncode == 0 else ()


def _usable(names: Iterable[str]) -> tuple[str, ...]:
    """The names up to the first that CUDA cannot take (-1, an empty one, Slurm's NoDevFiles): there it stops, too."""
    usable = []
    for name in map(str.strip, names):
        if not re.match(r"\d+$|GPU-|MIG-", name):
            break
        usable.append(name)
    return tuple(usable)
