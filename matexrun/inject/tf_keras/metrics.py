"""Metrics of tf_keras: where they are updated, and what is theirs alone. What happens is told in `metric_updates`."""

import inspect

import tensorflow as tf

from matexrun.inject import patching, step
from matexrun.inject.metric_updates import Updates


def patch() -> None:
    """Patch `update_state` of every Metric class, the user's included, and of MetricsContainer, which is
    compile(metrics=...)."""
    from tf_keras.src.engine.compile_utils import MetricsContainer
    from tf_keras.src.metrics.base_metric import Metric
    from tf_keras.src.metrics.py_metric import PyMetric

    @patching.overrides(Metric, "update_state")
    def update_state(original, self, *args, **kwargs):
        current = updates.step_of(args, kwargs)
        if current is None:
            return original(self, *args, **kwargs)
        return updates.update(original, self, args, kwargs, current)

    @patching.method(MetricsContainer, "update_state", ("y_true", "y_pred"))
    def compiled_metrics(original, self, *args, **kwargs):
        current = step.current()
        if current is None:
            return original(self, *args, **kwargs)
        with updates.together(current):
            return original(self, *args, **kwargs)

    @patching.method(PyMetric, "__init__", ("name",))
    def python_metric(original, self, *args, **kwargs):
        """Its update_state runs in Python, in a thread of TensorFlow's that knows of no step."""
        original(self, *args, **kwargs)
        update = self.update_state

        def gathered_update(y_true, y_pred, sample_weight=None):
            current = step.current()
            if current is not None:
                y_true, y_pred, sample_weight = updates.gathered(self, (y_true, y_pred, sample_weight), current)
            return update(y_true, y_pred, sample_weight)

        self.update_state = gathered_update


class _Updates(Updates):
    package = "tf_keras."
    adder = "add_weight"

    def sum_class(self):
        from tf_keras.src.metrics.base_metric import Sum

        return Sum

    def build_late(self, metric, args):
        """AUC(multi_label=True), F1Score, R2Score and MeanTensor make their variables at the first update.

        They do so in a method that takes the shape of y_pred, or of y_true and y_pred (tf_keras 2.18 and 2.21).
        """
        for flag, method in (("_built", "_build"), ("built", "build")):
            if getattr(metric, flag, True) is False:
                shapes = [tf.convert_to_tensor(tensor).shape for tensor in args[:2]]
                build = getattr(metric, method)
                build(*shapes[-len(inspect.signature(build).parameters) :])

    def returns_one_number(self, metric, args):
        """Of the user's functions: those of tf_keras never do."""
        function = self.user_function(metric)
        if function is None:
            return False
        y_true, y_pred = (tf.cast(tensor, metric.dtype) for tensor in args[:2])
        autograph = tf.__internal__.autograph
        function = autograph.tf_convert(function, autograph.control_status_ctx(), convert_by_default=False)
        return not function(y_true, y_pred, **metric._fn_kwargs).shape.rank

    def mask_of(self, tensor):
        return getattr(tensor, "_keras_mask", None)

    def set_mask(self, tensor, mask):
        tensor._keras_mask = mask


updates = _Updates()
