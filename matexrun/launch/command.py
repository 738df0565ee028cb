"""From what is to run to the exact command and environment that run it. Pure: nothing is read or started here."""

import dataclasses
from collections.abc import Mapping

from matexrun.launch import flavours
from matexrun.settings import Settings


@dataclasses.dataclass(frozen=True)
class Target:
    """What every rank runs: a script's path as the user wrote it or, with `is_module`, a module's name as for
    `python -m`; and the arguments that belong to it."""

    name: str
    args: tuple[str, ...] = ()
    is_module: bool = False

    def argv(self, python: str) -> list[str]:
        """The command that runs it on one rank."""
        return [python, *(["-m"] if self.is_module else []), self.name, *self.args]


@dataclasses.dataclass(frozen=True)
class Command:
    """argv: the full command line. added: the variables that it needs beside those of the user's environment."""

    argv: list[str]
    added: dict[str, str]

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """The whole environment: the user's, with the added variables winning."""
        return {**env, **self.added}


def build(target: Target, settings: Settings, mpi: flavours.MPI | None, python: str) -> Command:
    """The command that starts a worker on every rank, each of which runs the target in a child process.

    mpi: None where none was found, which a dry run shows as a plain `mpiexec -n`.
    """
    start = flavours.arguments(mpi, settings.size) if mpi else ["mpiexec", "-n", str(settings.size)]
    worker = [python, "-m", "matexrun.launch.worker", "--"]
    return Command(
        argv=[*start, *worker, *target.argv(python)],
        added={**(flavours.environment(mpi) if mpi else {}), **settings.to_env()},
    )
