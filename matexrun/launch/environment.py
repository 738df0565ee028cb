"""The environment in which a rank's Python starts. Pure: from variables and a placement to variables."""

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from matexrun import settings as names
from matexrun.ranks import Rank
from matexrun.settings import Settings

BOOTSTRAP = str(Path(__file__).resolve().parents[1] / "inject" / "bootstrap")


def rank_environment(
    env: Mapping[str, str], settings: Settings, me: Rank, cores: Collection[int], report_fd: int
) -> dict[str, str]:
    """`env` with what makes a Python process this rank, except its own process id (settings.PID).

    cores: those it may use, empty where they are not limited.  report_fd: where it writes events, open in the rank.
    What the user has set stays as it is, but for PYTHONPATH and, where a GPU was chosen for it, CUDA_VISIBLE_DEVICES.
    """
    result = dict(env)
    gpu = settings.placement(me.rank).get("gpu")
    if gpu is not None:
        result["CUDA_VISIBLE_DEVICES"] = gpu
    if cores:
        threads = max(1, len(cores) // _sharing(settings, me.rank, cores))
        for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
            result.setdefault(name, str(threads))
        # With one inter-op thread TensorFlow computes nothing while a reduction runs.
        result.setdefault("TF_NUM_INTEROP_THREADS", str(max(2, threads)))
    result.setdefault("PYTHONUNBUFFERED", "1")
    if result.get("PYTHONHASHSEED", "random") == "random":
        result["PYTHONHASHSEED"] = str(settings.seed)  # sets of strings must have one order on all ranks
    result["PYTHONPATH"] = os.pathsep.join(filter(None, (BOOTSTRAP, env.get("PYTHONPATH"))))
    result[names.PYTHONPATH_ENTRY] = BOOTSTRAP
    result[names.RANK] = str(me.rank)
    result[names.LOCAL_RANK] = str(me.local_rank)
    result[names.LOCAL_SIZE] = str(me.local_size)
    result[names.REPORT_FD] = str(report_fd)
    return result


def _sharing(settings: Settings, rank: int, cores: Collection[int]) -> int:
    """How many ranks of this node have the same cores: with more ranks than cores, each gets part of the threads."""
    placements = json.loads(settings.layout or "[]")
    node = placements[rank]["node"] if placements else None
    return max(1, sum(p["node"] == node and not set(cores).isdisjoint(p["cores"]) for p in placements))
