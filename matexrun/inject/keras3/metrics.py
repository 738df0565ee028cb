"""Metrics of Keras 3: where they are updated, and what is theirs alone. What happens is told in `metric_updates`."""

import inspect

import tensorflow as tf

from matexrun.inject import patching
from matexrun.inject.metric_updates import Updates


def patch() -> None:
    """Patch `update_state` of every Metric class, the user's included."""
    from keras.src.metrics.metric import Metric
    from keras.src.trainers import compile_utils

    containers = (compile_utils.CompileMetrics, compile_utils.MetricsList)

    @patching.overrides(Metric, "update_state")
    def update_state(original, self, *args, **kwargs):
        current = updates.step_of(args, kwargs)
        if current is None:
            return original(self, *args, **kwargs)
        if isinstance(self, containers):
            if isinstance(self, compile_utils.CompileMetrics) and not self.built:
                self.build(*args[:2])
            with updates.together(current):
                return original(self, *args, **kwargs)
        return updates.update(original, self, args, kwargs, current)


class _Updates(Updates):
    package = "keras."
    adder = "add_variable"

    def sum_class(self):
        from keras.src.metrics.reduction_metrics import Sum

        return Sum

    def build_late(self, metric, args):
        """AUC(multi_label=True), F1Score and R2Score make their variables at the first update.

        Their _build takes the shape of y_pred, or of y_true and y_pred (Keras 3.10 and 3.15).
        """
        if getattr(metric, "_built", True) is False and hasattr(metric, "_build"):
            shapes = [tf.convert_to_tensor(tensor).shape for tensor in args[:2]]
            metric._build(*shapes[-len(inspect.signature(metric._build).parameters) :])

    def returns_one_number(self, metric, args):
        return (
            getattr(metric, "_fn", None) is not None
            and not metric._fn(*args[:2], **getattr(metric, "_fn_kwargs", {})).shape.rank
        )

    def mask_of(self, tensor):
        from keras.src.backend.common.masking import get_keras_mask

        return get_keras_mask(tensor)

    def set_mask(self, tensor, mask):
        from keras.src.backend.common.masking import set_keras_mask

        set_keras_mask(tensor, mask)


updates = _Updates()
