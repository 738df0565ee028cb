"""Decisions of callbacks are one decision of all ranks; only rank 0 shows progress and writes logs."""

from matexrun.inject import lifecycle
from matexrun.inject.keras3 import callbacks as keras3


def patch() -> None:
    """Patch CallbackList, where fit, evaluate and predict call all callbacks, and the callbacks that only write."""
    from tf_keras.src import callbacks

    for name, parameters in (
        ("on_train_begin", ("logs",)),
        ("on_train_batch_end", ("batch", "logs")),
        ("on_epoch_end", ("epoch", "logs")),
    ):
        keras3.agree(callbacks.CallbackList, name, parameters, "stop_training")
    if lifecycle.rank() != 0:
        for cls in (callbacks.CSVLogger, callbacks.ProgbarLogger, callbacks.RemoteMonitor, callbacks.TensorBoard):
            keras3.silence(cls)
