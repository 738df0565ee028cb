"""Metrics: Keras's own, functions, and classes of the user's own, in fit, its validation, and evaluate."""

import keras
import numpy as np
from cases import BATCH, N, case, fit, labels, main, mlp, outcome, table
from keras import ops

WEIGHTS = np.linspace(0.2, 2, N)


def with_metrics(jit, metrics, *, data=None, model=None, loss="mse", **fit_options):
    """Train with a validation part, then evaluate all of it with weights."""
    model = model or mlp()
    x, y = data or table()
    model.compile("sgd", loss, metrics=metrics, weighted_metrics=[], jit_compile=jit)
    results = fit(model, x, y, batch_size=BATCH, validation_split=0.3, **fit_options)
    evaluated = model.evaluate(x, y, sample_weight=WEIGHTS, batch_size=11, verbose=0, return_dict=True)
    return outcome(model, fit=results, evaluate=evaluated)


@case
def regression(jit):
    return with_metrics(
        jit,
        [keras.metrics.RootMeanSquaredError(), keras.metrics.R2Score(), keras.metrics.CosineSimilarity(), "mape"],
    )


def binary():
    x, y = table()
    return x, (y > 0).astype("float32")


@case
def binary_counts(jit):
    metrics = [
        keras.metrics.AUC(num_thresholds=50, name="auc"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.Recall(name="recall"),
        keras.metrics.BinaryAccuracy(name="accuracy"),
        keras.metrics.SensitivityAtSpecificity(0.5, name="sensitivity"),
    ]
    return with_metrics(jit, metrics, data=binary(), model=mlp(1, "sigmoid"), loss="binary_crossentropy")


@case
def several_classes(jit):
    x, kinds = labels()
    metrics = [
        keras.metrics.F1Score(average="macro"),
        keras.metrics.OneHotMeanIoU(3),
        keras.metrics.TopKCategoricalAccuracy(2),
        "accuracy",
    ]
    data = x, keras.utils.to_categorical(kinds, 3)
    return with_metrics(jit, metrics, data=data, model=mlp(3, "softmax"), loss="categorical_crossentropy")


def bias(true, predicted):
    """One number instead of one a row."""
    return ops.mean(predicted - true)


def within(true, predicted):
    return ops.cast(ops.abs(predicted - true)[:, 0] < 0.5, "float32")


class Energy(keras.metrics.Metric):
    """Sum of squares over a count: its states add up."""

    def __init__(self, **kwargs):
        super().__init__(name="energy", **kwargs)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, true, predicted, sample_weight=None):
        self.total.assign_add(ops.sum(ops.square(predicted)))
        self.count.assign_add(ops.cast(ops.shape(predicted)[0], "float32"))

    def result(self):
        return self.total / (self.count + 1e-9)


@case
def own_that_add_up(jit):
    return with_metrics(jit, [bias, within, Energy()])


class LargestError(keras.metrics.Metric):
    """A maximum: states do not add up."""

    def __init__(self, **kwargs):
        super().__init__(name="largest", **kwargs)
        self.largest = self.add_weight(name="value", initializer="zeros")

    def update_state(self, true, predicted, sample_weight=None):
        error = ops.max(ops.abs(ops.cast(true, "float32") - predicted))
        self.largest.assign(ops.maximum(self.largest, error))

    def result(self):
        return self.largest


@case
def own_that_does_not_add_up(jit):
    """Beside one that does."""
    return with_metrics(jit, [LargestError(), Energy()])


@case
def logs_of_batches_and_result_after_fit(jit):
    """What callbacks see at the end of each batch: running values over the whole of the epoch so far; and
    metric.result() outside of any step."""
    seen = []
    notes = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(dict(logs)))
    metric = keras.metrics.MeanAbsoluteError()
    model = mlp()
    model.compile("sgd", "mse", metrics=[metric], jit_compile=jit)
    results = fit(model, *table(), batch_size=BATCH, callbacks=[notes])
    return {**results, "seen": seen, "result": float(metric.result()), "all": model.get_metrics_result()}


if __name__ == "__main__":
    main()
