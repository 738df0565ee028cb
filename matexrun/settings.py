"""What the launcher decides and every rank must know: one frozen record, and its form as environment variables.

The environment is the only bridge between the launcher side (`matexrun.cli`, `matexrun.launch`) and the rank side
(`matexrun.inject`, `matexrun.collectives`); this file is its only table. Imports nothing heavy.
"""

import dataclasses
import json
import os
from collections.abc import Mapping

from matexrun.errors import UsageError

PREFIX = "MATEXRUN_"


_PARSE = {bool: {"True": True, "False": False}.__getitem__}  # of what str() makes of it; bool("False") is True


@dataclasses.dataclass(frozen=True)
class Settings:
    """The same on all ranks of a job. Every field is `MATEXRUN_<FIELD>` in the environment of a worker and its rank.

    job: name of the job, used for log folders.  size: number of ranks asked for.  seed: the job seed (0 .. 2**31 - 1).
    job_dir: private folder of this job (events of the ranks).  layout: one record per rank, as JSON (`launch.layout`).
    batch: "global" (the user's batch size is the whole batch) or "per-rank" (it is multiplied by the size).
    scale_lr: "none", "linear" or "sqrt": how learning rates grow with the size where batch is "per-rank".
    warmup_steps: updates in which they get there.
    sync_batchnorm: whether BatchNormalization takes its statistics from the whole batch.
    sparse: "auto", "gather" or "dense": how gradients that consist of slices of a variable are combined.
    check_every: updates between comparisons of the weights of all ranks; 0: only after the first and at the end.
    inexact: "error" or "warn": what happens where the sequential result cannot be had.
    reduce_at: "auto", "optimizer" or "tape": where gradients of hand-written steps are combined.
    eager_loops: "whole" or "split": what ranks compute of batches in training loops that run eagerly.
    collectives: "auto", "ffi" (XLA custom calls) or "numpy" (numpy_function).  bucket_mb, chunk_mb: sizes in MiB of a
    fused bucket of small gradients and of the pieces in which a large one is reduced.  verbose: 0, 1, 2.
    """

    job: str
    size: int
    seed: int
    job_dir: str = ""
    log_dir: str = ""
    layout: str = ""
    batch: str = "global"
    scale_lr: str = "none"
    warmup_steps: int = 0
    sync_batchnorm: bool = False
    sparse: str = "auto"
    check_every: int = 0
    inexact: str = "error"
    reduce_at: str = "auto"
    eager_loops: str = "whole"
    collectives: str = "auto"
    bucket_mb: float = 4.0
    chunk_mb: float = 4.0
    verbose: int = 0

    def to_env(self) -> dict[str, str]:
        """The record as environment variables (empty strings are left out)."""
        return {PREFIX + name.upper(): str(value) for name, value in dataclasses.asdict(self).items() if value != ""}

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> "Settings":
        """The inverse of `to_env`. Raises UsageError where a variable is missing or not of its type."""
        values = {}
        for field in dataclasses.fields(cls):
            name = PREFIX + field.name.upper()
            if name in env:
                try:
                    values[field.name] = _PARSE.get(field.type, field.type)(env[name])
                except (KeyError, ValueError):
                    raise UsageError(f"{name}={env[name]!r}: expected {field.type.__name__}") from None
            elif field.default is dataclasses.MISSING:
                raise UsageError(f"{name} is not set: this process was not started by matexrun")
        return cls(**values)

    def placement(self, rank: int) -> dict:
        """This rank's record of the layout: {"node": str, "local_rank": int, "cores": [int], "gpu": str | None}."""
        return json.loads(self.layout)[rank] if self.layout else {}


# Set by the worker for its own rank only, beside the variables of Settings.
RANK = PREFIX + "RANK"  # this rank's number
LOCAL_RANK = PREFIX + "LOCAL_RANK"  # its number on its node
LOCAL_SIZE = PREFIX + "LOCAL_SIZE"  # ranks on its node
REPORT_FD = PREFIX + "REPORT_FD"  # open file descriptor for events (matexrun.reports), rank -> worker
PID = PREFIX + "PID"  # the rank's own process id: its children, which inherit the environment, are not ranks
PYTHONPATH_ENTRY = PREFIX + "PYTHONPATH_ENTRY"  # the bootstrap folder that the worker put first in PYTHONPATH
