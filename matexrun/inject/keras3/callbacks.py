"""Decisions of callbacks are one decision of all ranks; only rank 0 shows progress. What callbacks write to files is
written by all ranks, each to its own view of them (matexrun.inject.files)."""

import os

from matexrun.inject import lifecycle, patching


def patch() -> None:
    """Patch CallbackList, where fit, evaluate and predict call all callbacks, and the callbacks that only show."""
    from keras.src.callbacks import callback_list, progbar_logger, remote_monitor

    for name, parameters, flag in (
        ("on_train_begin", ("logs",), "stop_training"),
        ("on_train_batch_end", ("batch", "logs"), "stop_training"),
        ("on_epoch_end", ("epoch", "logs"), "stop_training"),
        ("on_test_batch_end", ("batch", "logs"), "stop_evaluating"),
        ("on_predict_batch_end", ("batch", "logs"), "stop_predicting"),
    ):
        agree(callback_list.CallbackList, name, parameters, flag)
    if lifecycle.rank() != 0:
        for cls in (progbar_logger.ProgbarLogger, remote_monitor.RemoteMonitor):
            silence(cls)


def agree(owner, name, parameters, flag) -> None:
    """After the callbacks have run, a stop that one rank asked for is every rank's, at the same step."""

    @patching.method(owner, name, parameters)
    def agreed(original, self, *args, **kwargs):
        original(self, *args, **kwargs)
        if os.getpid() == lifecycle.pid() and self.model is not None:
            setattr(self.model, flag, lifecycle.world().any(bool(getattr(self.model, flag, False))))


def silence(cls) -> None:
    """Make the methods of a callback that only shows do nothing on this rank. It still knows its model, which the
    user's subclasses may ask."""
    for name in vars(cls).copy():
        if name == "set_model":
            delattr(cls, name)
        elif name.startswith("on_"):
            setattr(cls, name, lambda self, *args, **kwargs: None)
