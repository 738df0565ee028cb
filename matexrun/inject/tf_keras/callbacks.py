"""Decisions of callbacks are one decision of all ranks; only rank 0 shows progress. What they write: see `files`."""

from matexrun.inject import lifecycle
from matexrun.inject.keras3 import callbacks as keras3


def patch() -> None:
    """Patch CallbackList, where fit, evaluate and predict call all callbacks, and the callbacks that only show."""
    from tf_keras.src import callbacks

    for name, parameters in (
        ("on_train_begin", ("logs",)),
        ("on_train_batch_end", ("batch", "logs")),
        ("on_epoch_end", ("epoch", "logs")),
    ):
        keras3.agree(callbacks.CallbackList, name, parameters, "stop_training")
    if lifecycle.rank() != 0:
        for cls in (callbacks.ProgbarLogger, callbacks.RemoteMonitor):
            keras3.silence(cls)
