"""Names that scripts draw for their runs are the same on all ranks, and services that record runs see one run.

Only uuid1 and uuid4 are drawn from the job, and only where the script itself asks: a library's may have to differ
between processes (sockets, shared memory), and `secrets` and os.urandom are for secrets. Names that differ all the
same, such as those made of the time, do no harm: only rank 0's files are kept.
"""

import functools
import os
import random
import site
import sys
import sysconfig
import uuid

import wrapt

from matexrun.settings import Settings


def start(job: Settings, rank: int) -> None:
    """Called once, before the script runs."""
    _patch_uuid(job)
    if rank != 0:
        wrapt.register_post_import_hook(_disable_wandb, "wandb")
        # A store of its own, which ends with the job; of files, for which mlflow needs no database (2.x and 3.x).
        os.environ["MLFLOW_TRACKING_URI"] = f"file://{os.environ['TMPDIR']}/mlruns"
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        wrapt.register_post_import_hook(_keep_store, "mlflow")


def _patch_uuid(job: Settings) -> None:
    # Not of the seed alone, which the user may fix: another job's names must be others.
    stream = random.Random(f"{job.seed} {job.job} {job.job_dir}")
    for version, original in ((1, uuid.uuid1), (4, uuid.uuid4)):
        setattr(uuid, original.__name__, _drawn(stream, version, original))


def _drawn(stream: random.Random, version: int, original):
    @functools.wraps(original)
    def draw(*args, **kwargs):
        if _is_library(sys._getframe(1).f_code.co_filename):
            return original(*args, **kwargs)
        return uuid.UUID(int=stream.getrandbits(128), version=version)

    return draw


@functools.cache
def _libraries() -> tuple[str, ...]:
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(os.path.join(path, "") for path in (*paths, *site.getsitepackages(), site.getusersitepackages()))


def _is_library(file: str) -> bool:
    return file.startswith(("<frozen", *_libraries()))


def _disable_wandb(wandb) -> None:
    """wandb.init gives its documented stand-in for a run, whatever mode the script asks for (wandb 0.2x)."""
    original = wandb.init

    @functools.wraps(original)
    def init(*args, **kwargs):
        return original(*args, **{**kwargs, "mode": "disabled"})

    wandb.init = init


def _keep_store(mlflow) -> None:
    """A tracking server that the script names is told of rank 0's run only."""

    def set_tracking_uri(uri):
        """Does nothing on this rank, whose runs are dropped."""

    mlflow.set_tracking_uri = set_tracking_uri
