"""The rank side: what sitecustomize starts in every rank, before the user's script.

Nothing here may import TensorFlow or MPI; that waits until the script itself imports TensorFlow (`hooks`).
"""

import os
import sys

from matexrun import ranks, reports, settings
from matexrun.errors import MatexrunError
from matexrun.inject import files, hooks, lifecycle, randomness


def activate() -> None:
    """Make this process a rank, or, in a child process of a rank, leave it alone.

    Ends the process with a one-line message where that is impossible.
    """
    entry = os.environ.get(settings.PYTHONPATH_ENTRY)
    _chain(entry)
    if os.environ.get(settings.PID) != str(os.getpid()):
        forget(os.environ)  # a child that was started before the rank claimed its place
        return
    reports.keep_channel()
    try:
        job = settings.Settings.from_env()
        lifecycle.start(job, int(os.environ[settings.RANK]))
        if job.size > 1:
            randomness.seed_python(job.seed)
            files.start(job, int(os.environ[settings.RANK]))
            hooks.register()
    except MatexrunError as error:
        lifecycle.die(error)
    reports.send("activated")


def forget(env) -> None:
    """Take everything out of `env` that would make a child process injected, or an MPI rank."""
    entry = env.get(settings.PYTHONPATH_ENTRY)
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path and path != entry]
    if paths:
        env["PYTHONPATH"] = os.pathsep.join(paths)
    else:
        env.pop("PYTHONPATH", None)
    for name in [name for name in env if name.startswith(settings.PREFIX)]:
        del env[name]
    ranks.scrub(env)


def _chain(entry: str | None) -> None:
    """Import the machine's own sitecustomize, which ours hides."""
    ours = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [path for path in sys.path if path != entry]
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours
