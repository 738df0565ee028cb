"""The command line: options of matexrun, then a script and its arguments. `matexrun.launch` does the work."""

import os
import sys

import click

from matexrun import __version__
from matexrun.errors import MatexrunError
from matexrun.launch.command import Target


@click.command(
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    options_metavar="[OPTIONS]",
)
@click.option("-n", "--ranks", type=int, help="Number of ranks.  [default: one per GPU, else per NUMA node]")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module's name, as for `python -m`.")
@click.option("--cpus-per-rank", type=int, help="Cores of each rank.  [default: an even share]")
@click.option("--batch", metavar="global|per-rank", help="What the script's batch size means: all ranks' or one's.")
@click.option(
    "--scale-lr", metavar="none|linear|sqrt", help="With --batch per-rank: scale learning rates by the ranks."
)
@click.option("--warmup-steps", type=int, help="Updates in which --scale-lr goes from 1 to its factor.")
@click.option("--sync-batchnorm/--no-sync-batchnorm", default=None, help="BatchNormalization over whole batches.")
@click.option("--sparse", metavar="auto|gather|dense", help="How gradients of embeddings are combined.")
@click.option("--check-every", type=int, help="Updates between comparisons of the ranks' weights.  [default: none]")
@click.option("--inexact", metavar="error|warn", help="Where the sequential result cannot be had: end, or go on.")
@click.option("--reduce-at", metavar="auto|optimizer|tape", help="Where gradients of hand-written steps are combined.")
@click.option("--eager-loops", metavar="whole|split", help="What ranks compute in training loops that run eagerly.")
@click.option("--collectives", metavar="auto|ffi|numpy", help="How gradients reach MPI.")
@click.option("--bucket-mb", type=float, help="MiB of small gradients that are reduced together.")
@click.option("--chunk-mb", type=float, help="MiB of the pieces in which a large gradient is reduced.")
@click.option("--seed", type=int, help="Seed of the job.  [default: a new one]")
@click.option("--log-dir", metavar="DIR", help="Output of ranks other than 0.  [default: matexrun-logs/<job>]")
@click.option("--config", metavar="FILE", help="YAML file with these options by name; the command line wins.")
@click.option("--dry-run", is_flag=True, help="Show ranks, command and environment; start nothing.")
@click.option("--format", type=click.Choice(["table", "json"]), default="table", help="Form of --dry-run.")
@click.option("--doctor", is_flag=True, help="Check Python, TensorFlow and MPI; say what is wrong and what to do.")
@click.option("-v", "verbose", count=True, help="Say more (-vv: details).")
@click.version_option(__version__, "--version", message="matexrun %(version)s")
@click.argument("script", required=False, metavar="SCRIPT")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(script, args, is_module, config, dry_run, format, doctor, verbose, **given) -> int:
    """Run an unmodified TensorFlow/Keras SCRIPT data-parallel, with the result of `python SCRIPT`.

    Everything after SCRIPT belongs to the script.
    """
    from matexrun.launch import config as configuration

    if doctor:
        from matexrun.launch import doctor as doctors

        return doctors.examine()
    if script is None:
        raise click.UsageError("expected a script, as in `matexrun -n 4 train.py`")
    options = configuration.resolve({**given, "verbose": verbose or None}, config)
    target = Target(script, args, is_module)
    from matexrun.launch import plan

    if dry_run:
        from matexrun.launch import dryrun

        dryrun.show(plan.plan(options, target, job_dir="<private folder of the job>"), format)
        return 0
    return plan.run(options, target)


def main() -> None:
    """Entry point. Ends the process: one line on stderr and the status of matexrun.errors for a problem."""
    try:
        status = command.main(prog_name="matexrun", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        status = _complain(error.format_message(), error.exit_code)
    except MatexrunError as error:
        status = _complain(str(error), error.exit_status)
    except (KeyboardInterrupt, click.Abort):
        status = 130
    except BrokenPipeError:  # `matexrun --dry-run train.py | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


def _complain(message: str, status: int) -> int:
    print(f"matexrun: {' '.join(message.split())}", file=sys.stderr)
    return status
