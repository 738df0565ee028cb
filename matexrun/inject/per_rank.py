"""Where --batch per-rank cannot be had: batches that do not come from fit of Keras 3."""

from matexrun.errors import UsageError
from matexrun.inject import lifecycle


def refuse(what: str) -> None:
    """Raise UsageError with --batch per-rank, because the batch size of `what` is not known to matexrun."""
    if lifecycle.job().batch == "per-rank":
        raise UsageError(
            f"--batch per-rank enlarges the batches of fit of Keras 3, and cannot do so for {what}: leave it out, and "
            "set the batch size, and the learning rate for it, in the script"
        )
