"""Patches of TensorFlow itself: refuse other ways of distributing, count gradients, seed random ops."""

import functools

from packaging.version import Version

from matexrun import reports
from matexrun.errors import ContractError, EnvironmentError_, UsageError
from matexrun.inject import lifecycle, patching, randomness

OLDEST = Version("2.18")


class _Count:
    gradients = 0  # how often the script (or Keras) asked a tape for gradients


def check_version(tf) -> None:
    """Raise EnvironmentError_ for a TensorFlow that is too old."""
    if Version(tf.__version__) < OLDEST:
        raise EnvironmentError_(
            f"TensorFlow {tf.__version__} is installed, matexrun needs {OLDEST} or newer: pip install -U tensorflow"
        )


def patch(tf) -> None:
    """Apply all patches of this file."""
    randomness.patch_tensorflow(lifecycle.job().seed, lifecycle.rank())
    _refuse_strategies(tf)
    _count_gradients(tf)
    lifecycle.at_end(_check_reduced)


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


def _count_gradients(tf) -> None:
    """Count tape.gradient calls, so that a run that never reduced one can say so at its end."""
    original = tf.GradientTape.gradient
    patching.check_signature(original, ("self", "target", "sources"))

    @functools.wraps(original)
    def gradient(self, *args, **kwargs):
        _Count.gradients += 1
        return original(self, *args, **kwargs)

    tf.GradientTape.gradient = gradient


def _check_reduced() -> None:
    from matexrun.collectives import ops

    if _Count.gradients and not ops.counters()["gradients"]:
        raise ContractError(
            f"the script took gradients {_Count.gradients} times, but none was ever combined between the ranks: every "
            "rank trained alone. matexrun combines them where an optimizer applies them (optimizer.apply_gradients, "
            "model.fit); updates written by hand (variable.assign_sub) are not supported"
        )


def warn(message: str) -> None:
    """Tell the user once, through the launcher (rank 0's word suffices)."""
    if lifecycle.rank() == 0 and message not in _told:
        _told.add(message)
        reports.send("warning", message=message)


_told: set[str] = set()
