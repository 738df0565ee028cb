"""The way from options to a running job: look at the machine, find MPI, fix the settings, build the command, run it."""

import dataclasses
import os
import re
import secrets
import sys
import tempfile
import time
from pathlib import Path

from matexrun.errors import EnvironmentError_, MatexrunError, UsageError
from matexrun.launch import checks, command, job, machine, mpi
from matexrun.launch import layout as layouts
from matexrun.launch.config import Options
from matexrun.launch.flavours import MPI
from matexrun.settings import Settings


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that is decided before anything starts.  problems: what this machine lacks for it; a run raises the first."""

    settings: Settings
    placements: list[layouts.Placement]
    mpi: MPI | None
    command: command.Command
    problems: tuple[MatexrunError, ...] = ()


def plan(options: Options, target: command.Target, job_dir: str) -> Plan:
    """Decide everything. job_dir: the private folder of the job. Raises UsageError for a request that cannot be met."""
    checks.check(target)
    placements = layouts.layout(options, machine.this_node())
    found, problems = None, []
    try:
        found = mpi.find(sys.executable)
    except EnvironmentError_ as error:
        problems.append(error)
    try:
        layouts.check_gpus(placements)
    except UsageError as error:
        problems.append(error)
    settings = _settings(options, target, placements, job_dir)
    return Plan(settings, placements, found, command.build(target, settings, found, sys.executable), tuple(problems))


def run(options: Options, target: command.Target) -> int:
    """Run the job to its end and return its exit status. Raises MatexrunError where it cannot start."""
    with tempfile.TemporaryDirectory(prefix="matexrun-", ignore_cleanup_errors=True) as job_dir:
        planned = plan(options, target, job_dir)
        if planned.problems:
            raise planned.problems[0]
        environment = planned.command.environment(os.environ)
        return job.run(planned.command.argv, environment, planned.settings)


def _settings(options: Options, target: command.Target, placements: list[layouts.Placement], job_dir: str) -> Settings:
    job_name = _job_name(target)
    return Settings(
        job=job_name,
        size=len(placements),
        seed=secrets.randbelow(2**31) if options.seed is None else options.seed,
        job_dir=job_dir,
        log_dir=os.path.abspath(options.log_dir or os.path.join("matexrun-logs", job_name)),
        layout=layouts.to_json(placements),
        batch=options.batch,
        scale_lr=options.scale_lr,
        warmup_steps=options.warmup_steps,
        sync_batchnorm=options.sync_batchnorm,
        sparse=options.sparse,
        check_every=options.check_every,
        inexact=options.inexact,
        reduce_at=options.reduce_at,
        eager_loops=options.eager_loops,
        collectives=options.collectives,
        bucket_mb=options.bucket_mb,
        chunk_mb=options.chunk_mb,
        verbose=options.verbose,
    )


def _job_name(target: command.Target) -> str:
    """Like train-20261130-221630-9f3c: says what and when, fit for a folder's name, and unlike any other job's."""
    stem = target.name if target.is_module else Path(target.name).stem
    return f"{re.sub(r'[^A-Za-z0-9_.]', '_', stem)}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
