"""User-written losses and metrics of a tf_keras model are tried once, on the first batch, as told in `keras3.probe`."""

import contextlib

import numpy as np
import tensorflow as tf

from matexrun.inject import sparse
from matexrun.inject.keras3 import probe as keras3
from matexrun.inject.tf_keras import metrics
from matexrun.inject.tf_keras.data import Slice


def needed(model) -> bool:
    """Whether anything of the user's decides the loss or the metrics."""
    return bool(_user_losses(model) or _user_metrics(model) or _own_compute_loss(model) or _adds_losses(model))


def build(model, data) -> None:
    """Build an unbuilt model from the shapes of a batch. One that cannot be built so (a GAN without call) makes its
    weights in its first step, from the job's seed, and is compared after it."""

    def any_rows(spec):
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if isinstance(spec, tf.TensorSpec) else spec

    x = tf.nest.map_structure(lambda leaf: any_rows(tf.type_spec_from_value(leaf)), _unpack(data)[0])
    try:
        tf.function(lambda x: model(x, training=False), autograph=False).get_concrete_function(x)
    except Exception:  # the step itself will show the error, if it is one
        pass


def check(model, first: Slice) -> None:
    """Probe on the first batch; collective. Raises InexactError for a loss that slices cannot make up (or warns, with
    --inexact warn); remembers which of the user's metrics add up."""
    rows, wanted = int(first.rows), needed(model)
    problems, adds_up = [], {}
    if wanted:
        data = _unpack(first.data)
        with _state_kept(model):
            whole = _Part(model, *data)
            _build_compiled(model, whole)  # on all ranks, also on one without rows to try
            if rows >= 2:
                halves = [keras3.between(data, 0, rows // 2), keras3.between(data, rows // 2, rows)]
                parts = [whole, *(_Part(model, *half) for half in halves)]
                problems = _check_losses(model, parts)
                adds_up = _check_metrics(model, parts)
    keras3.decide(problems, adds_up, rows >= 2 or not wanted, _user_metrics(model), metrics.additive)


def _build_compiled(model, part) -> None:
    """Have the objects that compile(loss=..., metrics=...) stands for."""
    if model.compiled_loss is not None and not model.compiled_loss.built:
        model.compiled_loss.build(part.y_pred)
    if model.compiled_metrics is not None and not model.compiled_metrics.built and part.y is not None:
        model.compiled_metrics.build(part.y_pred, part.y)


def reason_against_jit(model) -> str | None:
    """Why XLA cannot compile this model's step, or None."""
    # In a step of the user's, gradients are combined before it is known what becomes of them.
    optimizer = model.optimizer if type(model).train_step.__module__.startswith("tf_keras.") else None
    for layer in model._flatten_layers():
        if type(layer).__name__ == "Embedding" and layer.trainable and not sparse.compilable(optimizer):
            return (
                f"the gradient of the layer {layer.name!r} consists of slices, and XLA cannot gather them "
                "(--sparse tells which optimizers can do without)"
            )
    for metric in _user_metrics(model):
        if metric not in metrics.additive:
            name = getattr(metric, "name", None) or getattr(metric, "__name__", metric)
            return f"the metric {name!r} is not a sum over rows, and XLA cannot gather rows from the other ranks"
    return None


class _Part:
    """Some rows, the model's predictions for them, and the losses that its layers added."""

    def __init__(self, model, x, y, weight):
        self.x, self.y, self.weight = x, y, weight
        self.rows = len(tf.nest.flatten(x)[0])
        self.y_pred = model(x, training=False)
        self.added = [float(tf.reduce_sum(loss)) for loss in model.losses]


def _check_losses(model, parts) -> list[str]:
    if _own_compute_loss(model):
        values = [model.compute_loss(p.x, p.y, p.y_pred, p.weight) for p in parts]
        if not keras3.is_mean(values, parts):
            return [keras3.message("compute_loss() of the model", values, parts)]
        return []
    problems = []
    for i in range(len(parts[0].added)):
        values = [part.added[i] if i < len(part.added) else np.nan for part in parts]
        if not keras3.is_mean(values, parts):
            problems.append(keras3.message("a loss added by a layer (add_loss)", values, parts))
    for loss, values in _values_of_losses(model, parts):
        if values[0].shape.rank == 0:
            if not keras3.is_mean(values, parts):
                problems.append(keras3.message(f"the loss {loss.name!r}", values, parts))
        elif not np.allclose(values[0], tf.concat(values[1:], 0), rtol=1e-2, atol=1e-5):
            problems.append(
                f"the loss {loss.name!r} gives a row another value when it is computed with other rows: it depends on "
                "the whole batch, and slices of the batch cannot make it up"
            )
    return problems


def _values_of_losses(model, parts) -> list:
    """[(loss, [what it returned for each part])] of the losses that the user wrote, called as in a step, by the
    LossesContainer, which knows what output each belongs to, and listened to."""
    if not _user_losses(model):
        return []
    heard = []
    for loss in _user_losses(model):
        values, call = [], loss.call
        loss.call = lambda *args, values=values, call=call: (
            values.append(tf.convert_to_tensor(call(*args))) or values[-1]
        )
        heard.append((loss, values))
    try:
        for part in parts:
            model.compiled_loss(part.y, part.y_pred, part.weight)
    finally:
        for loss, _ in heard:
            del loss.call
    return heard


def _check_metrics(model, parts) -> dict[int, bool]:
    """{index in _user_metrics: whether its state on all rows is the sum of its states on the parts}.

    Where a state does not change at all, the answer would say nothing, and counts as no.
    """
    compiled, states = model.compiled_metrics, []
    if compiled is None or not compiled.built:
        return {}
    compiled.update_state(parts[0].y, parts[0].y_pred, parts[0].weight)  # some make variables only now
    own = {i: metric for i, metric in enumerate(_user_metrics(model)) if metric in compiled.metrics}
    for part in parts:
        model.reset_metrics()
        start = {i: [v.numpy() for v in metric.variables] for i, metric in own.items()}
        compiled.update_state(part.y, part.y_pred, part.weight)
        states.append(
            {i: [v.numpy() - old for v, old in zip(m.variables, start[i], strict=True)] for i, m in own.items()}
        )
    # Without variables, a metric keeps its state where we cannot see it.
    return {i: bool(states[0][i]) and all(map(keras3.adds_up, *(state[i] for state in states))) for i in own}


@contextlib.contextmanager
def _state_kept(model):
    """Forward passes may count, draw seeds, or collect; afterwards it is as if they had not been.

    Metrics are empty before the first step, also those that come into being here.
    """
    kept = [(v, v.numpy()) for v in model.variables]
    try:
        yield
    finally:
        for variable, value in kept:
            if not np.array_equal(variable.numpy(), value):
                variable.assign(value)
        model.reset_metrics()


def _user_losses(model) -> list:
    """What the user wrote of compile(loss=...): Loss objects, or, before they are built, what was given."""
    compiled = model.compiled_loss
    if compiled is None:
        return []
    return [loss for loss in tf.nest.flatten(compiled._losses) if loss is not None and _is_users(loss)]


def _is_users(function) -> bool:
    """Whether the user wrote this loss or metric, or the function that it wraps; a name is one of tf_keras' own."""
    function = getattr(function, "fn", function)
    module = getattr(function, "__module__", None) or type(function).__module__
    return not isinstance(function, str) and not module.startswith("tf_keras.")


def _user_metrics(model) -> list:
    """The metrics whose update the user wrote; before they are built, what compile() was given."""
    compiled, found = model.compiled_metrics, [m for m in model.metrics if metrics.written_by_user(m)]
    if compiled is None or compiled.built:
        return found
    given = tf.nest.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
    given = [m for m in given if m is not None]
    return found + [m for m in given if (metrics.written_by_user(m) if hasattr(m, "update_state") else _is_users(m))]


def _own_compute_loss(model) -> bool:
    return not type(model).compute_loss.__module__.startswith("tf_keras.")


def _adds_losses(model) -> bool:
    """Whether losses can come from layers: the user's own, and those that model.add_loss() makes."""
    layers = [layer for layer in model._flatten_layers() if not hasattr(layer, "update_state")]
    return any(type(one).__name__ == "AddLoss" or not type(one).__module__.startswith("tf_keras.") for one in layers)


def _unpack(data):
    from tf_keras.src.engine.data_adapter import unpack_x_y_sample_weight

    return unpack_x_y_sample_weight(data)
