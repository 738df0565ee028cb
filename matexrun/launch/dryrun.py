"""Show what a run would do, as a table for people or as JSON for tools. Starts nothing."""

import json
import shlex
import sys

from matexrun.launch.plan import Plan


def as_json(planned: Plan) -> str:
    """The plan as one JSON object: job, ranks (a list by rank), mpi, command, environment, problems."""
    found = planned.mpi
    return json.dumps(
        {
            "job": planned.settings.job,
            "ranks": [
                {
                    "rank": place.rank,
                    "node": place.node,
                    "local_rank": place.local_rank,
                    "cores": list(place.cores),
                    "gpu": place.gpu,
                }
                for place in planned.placements
            ],
            "mpi": found and {"flavour": found.flavour, "version": list(found.version), "library": found.library},
            "mpiexec": found and found.mpiexec,
            "command": planned.command.argv,
            "environment": planned.command.added,
            "problems": [str(problem) for problem in planned.problems],
        },
        indent=2,
    )


def show(planned: Plan, format: str) -> None:
    """Print the plan to stdout. format: "table" or "json"."""
    if format == "json":
        print(as_json(planned))
        return
    _print_table(planned)
    print(
        f"\nMPI: {planned.mpi} ({planned.mpi.library})"
        if planned.mpi
        else "\nMPI: none found, or no mpiexec of its own"
    )
    print(f"\nCommand:\n  {shlex.join(planned.command.argv)}")
    print("\nEnvironment, beside your own:")
    for name, value in planned.command.added.items():
        print(f"  {name}={shlex.quote(value)}")
    for problem in planned.problems:
        print(f"\nA run would stop here: {problem}")


def _print_table(planned: Plan) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("rank", "node", "local rank", "cores", "GPU")
    for place in planned.placements:
        table.add_row(str(place.rank), place.node, str(place.local_rank), core_ranges(place.cores), place.gpu or "-")
    # Without a terminal rich assumes 80 columns; a row must stay one line for whoever counts or greps.
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)


def core_ranges(cores: tuple[int, ...]) -> str:
    """Numbers in the kernel's short form: (0, 1, 2, 3, 8) is "0-3,8"."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
