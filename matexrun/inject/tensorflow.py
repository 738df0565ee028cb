"""Patches of TensorFlow itself: refuse other ways of distributing, seed random ops, combine gradients."""

from packaging.version import Version

from matexrun import reports
from matexrun.errors import EnvironmentError_, UsageError
from matexrun.inject import files, lifecycle, patching, randomness

OLDEST = Version("2.18")


def check_version(tf) -> None:
    """Raise EnvironmentError_ for a TensorFlow that is too old."""
    if Version(tf.__version__) < OLDEST:
        raise EnvironmentError_(
            f"TensorFlow {tf.__version__} is installed, matexrun needs {OLDEST} or newer: pip install -U tensorflow"
        )


def patch(tf) -> None:
    """Apply all patches of this file."""
    from matexrun.inject import data_order, draws, gradients, loops, pipelines, v1  # which import TensorFlow

    randomness.patch_tensorflow(lifecycle.job().seed, lifecycle.rank(), lifecycle.job().size)
    _refuse_strategies(tf)
    files.patch_tensorflow()
    data_order.patch()
    draws.patch()
    gradients.patch()
    loops.patch()
    pipelines.patch()
    v1.patch()


def _refuse_strategies(tf) -> None:
    """A tf.distribute strategy beside MPI ranks would split twice. The default strategy, which Keras uses, is no
    strategy.

    Patches Strategy.__init__(extended) of tensorflow.python.distribute.distribute_lib (TF 2.18 to 2.21).
    """
    from tensorflow.python.distribute import distribute_lib

    def refuse(original, self, extended, *args, **kwargs):
        if type(self).__name__ not in ("_DefaultDistributionStrategy", "_DefaultDistributionStrategyV1"):
            raise UsageError(
                f"the script builds a {type(self).__name__}, and matexrun already distributes it: delete the strategy "
                "and its scope(), and keep what is inside"
            )
        original(self, extended, *args, **kwargs)

    for owner in (distribute_lib.StrategyBase,):
        patching.method(owner, "__init__", ("extended",))(refuse)


def warn(message: str) -> None:
    """Tell the user once, through the launcher (rank 0's word suffices)."""
    if lifecycle.rank() == 0 and message not in _told:
        _told.add(message)
        reports.send("warning", message=message)


_told: set[str] = set()
