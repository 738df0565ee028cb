"""Which rank runs where: from the options and a machine to one placement per rank. Pure: nothing is read or started."""

import dataclasses
import json
from collections.abc import Sequence

from matexrun.errors import UsageError
from matexrun.launch.config import Options
from matexrun.launch.machine import Node


@dataclasses.dataclass(frozen=True)
class Placement:
    """One rank: its node, its number there, the cores it may use, and its GPU as CUDA_VISIBLE_DEVICES names it."""

    rank: int
    node: str
    local_rank: int
    cores: tuple[int, ...]
    gpu: str | None


def layout(options: Options, node: Node) -> list[Placement]:
    """The placements of all ranks, by rank.

    Without a number of ranks: one per GPU, else one per NUMA node. Raises UsageError where the cores asked for
    cannot be had.
    """
    count = options.ranks or len(node.gpus) or node.domains
    return [
        Placement(local_rank, node.name, local_rank, cores, _gpu(node.gpus, local_rank))
        for local_rank, cores in enumerate(divide_cores(node.cores, count, options.cpus_per_rank))
    ]


def divide_cores(cores: Sequence[int], count: int, each: int | None = None) -> list[tuple[int, ...]]:
    """`count` shares of `cores`: disjoint runs of equal length (`each`, or as long as possible), because a rank with
    fewer cores would make the others wait. More shares than cores: all share all, and the kernel balances them."""
    if each is not None and each * count > len(cores):
        raise UsageError(
            f"{count} ranks x {each} cores are {each * count} cores, but this process may use {len(cores)}: "
            f"lower --ranks or --cpus-per-rank"
        )
    if count > len(cores):
        return [tuple(cores)] * count
    each = each or len(cores) // count
    return [tuple(cores[index * each : (index + 1) * each]) for index in range(count)]


def _gpu(gpus: Sequence[str], local_rank: int) -> str | None:
    return gpus[local_rank % len(gpus)] if gpus else None


def check_gpus(placements: Sequence[Placement]) -> None:
    """Raise UsageError where ranks would have to share a GPU, whose memory TensorFlow takes whole."""
    gpus = [(placement.node, placement.gpu) for placement in placements if placement.gpu is not None]
    there = len(set(gpus))
    if there < len(gpus):
        raise UsageError(
            f"{len(gpus)} ranks, but {there} visible GPUs, and ranks cannot share one: use -n {there}, or set "
            f"CUDA_VISIBLE_DEVICES= (empty) to train on CPUs"
        )


def to_json(placements: Sequence[Placement]) -> str:
    """The form that Settings.layout carries to the ranks: a list by rank, without spaces (it is one variable)."""
    records = [
        {"node": place.node, "local_rank": place.local_rank, "cores": place.cores, "gpu": place.gpu}
        for place in placements
    ]
    return json.dumps(records, separators=(",", ":"))
