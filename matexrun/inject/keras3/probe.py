"""User-written losses and metrics are tried once, on the first batch: is the whole what its parts say it is?

Keras' own losses and metrics are known to combine. For a function of the user's there is no telling from the outside,
so its value on this rank's rows is compared with the combination of its values on two parts of them.
"""

import contextlib

import numpy as np
import tensorflow as tf

from matexrun.errors import InexactError
from matexrun.inject import lifecycle, sparse
from matexrun.inject.keras3 import metrics
from matexrun.inject.tensorflow import warn

# Losses of Keras (3.10 and 3.15) that reduce over, or compare, the rows of a batch.
_OF_WHOLE_BATCHES = ("circle", "dice", "tversky")


def needed(model) -> bool:
    """Whether anything of the user's decides the loss or the metrics."""
    return bool(_user_losses(model) or _user_metrics(model) or _own_compute_loss(model) or _adds_losses(model))


def build(model, batch) -> None:
    """Build an unbuilt model as Keras does for its other backends, from shapes alone. A model that cannot be built so
    builds in its first step, from the job's seed, and is compared after it."""
    try:
        model._symbolic_build(data_batch=batch)
    except Exception:  # the step itself will show the error, if it is one
        pass


def check(model, element) -> None:
    """Probe on the first element; collective. Raises InexactError for a loss that slices cannot make up (or warns, with
    --inexact warn); remembers which of the user's metrics add up."""
    batch, (rows, _) = element
    x, y, weight = _unpack(batch)
    rows = int(rows)
    problems, adds_up = [], {}
    if needed(model) and rows >= 2:
        with _state_kept(model):
            cuts = ((0, rows), (0, rows // 2), (rows // 2, rows))
            parts = [_Part(model, *between((x, y, weight), *cut)) for cut in cuts]
            problems = _check_losses(model, parts)
            adds_up = _check_metrics(model, parts)
    able = rows >= 2 or not needed(model)
    decide(problems, adds_up, able, _user_metrics(model), metrics.additive)


def decide(problems: list[str], adds_up: dict[int, bool], able: bool, own_metrics: list, additive) -> None:
    """Make one verdict of what the ranks have found. Collective. Raises InexactError where one rank has found a problem
    (or warns, with --inexact warn).

    adds_up: {index in own_metrics: whether its states do}; those that do for all are put into the set `additive`.
    able: whether this rank had rows enough to try.
    """
    everyone = lifecycle.world().allgather_object((problems, adds_up, able))
    for found, _, _ in everyone:
        for problem in found:
            if lifecycle.job().inexact == "error":
                raise InexactError(problem + " (--inexact warn trains all the same)")
            warn(problem)
            break
    for i, metric in enumerate(own_metrics):
        answers = [answers.get(i) for _, answers, able in everyone if able]
        if answers and all(answers):
            additive.add(metric)
    if not any(able for _, _, able in everyone):
        warn(
            "the user-written loss or metric could not be probed, because no rank has two rows of the first batch; "
            "the loss is taken as a mean over rows"
        )


def reason_against_jit(model) -> str | None:
    """Why XLA cannot compile this model's step, or None."""
    # In a step of the user's, gradients are combined before it is known what becomes of them.
    optimizer = model.optimizer if type(model).train_step.__module__.startswith("keras.") else None
    for layer in model._flatten_layers():
        if type(layer).__name__ == "Embedding" and layer.trainable and not sparse.compilable(optimizer):
            return (
                f"the gradient of the layer {layer.name!r} consists of slices, and XLA cannot gather them "
                "(--sparse tells which optimizers can do without)"
            )
    for metric in _user_metrics(model):
        if metric not in metrics.additive:
            return f"the metric {metric.name!r} is not a sum over rows, and XLA cannot gather rows from the other ranks"
    return None


class _Part:
    """Some rows, the model's predictions for them, and the losses that its layers added."""

    def __init__(self, model, x, y, weight):
        self.x, self.y, self.weight = x, y, weight
        self.rows = len(tf.nest.flatten(x)[0])
        self.y_pred = _forward(model, x)
        self.added = [float(tf.reduce_sum(loss)) for loss in model.losses]


def _check_losses(model, parts) -> list[str]:
    if _own_compute_loss(model):
        values = [model._compute_loss(p.x, p.y, p.y_pred, p.weight, training=False) for p in parts]
        if not is_mean(values, parts):
            return [message("compute_loss() of the model", values, parts)]
        return []
    problems = []
    for i in range(len(parts[0].added)):
        values = [part.added[i] if i < len(part.added) else np.nan for part in parts]
        if not is_mean(values, parts):
            problems.append(message("a loss added by a layer (add_loss, activity_regularizer)", values, parts))
    for loss, values in _values_of_losses(model, parts):
        if values[0].shape.rank == 0:
            if not is_mean(values, parts):
                problems.append(message(f"the loss {loss.name!r}", values, parts))
        elif not np.allclose(values[0], tf.concat(values[1:], 0), rtol=1e-2, atol=1e-5):
            problems.append(
                f"the loss {loss.name!r} gives a row another value when it is computed with other rows: it depends on "
                "the whole batch, and slices of the batch cannot make it up"
            )
    return problems


def _values_of_losses(model, parts) -> list:
    """[(loss, [what it returned for each part])] of the losses that the user wrote.

    They are called as in a step, by CompileLoss, which knows what output each belongs to, and listened to.
    """
    if not _user_losses(model):
        return []
    model._compile_loss(parts[0].y, parts[0].y_pred, parts[0].weight)  # builds it
    heard = []
    for loss in _user_losses(model):
        values, call = [], loss.call
        loss.call = lambda *args, values=values, call=call: (
            values.append(tf.convert_to_tensor(call(*args))) or values[-1]
        )
        heard.append((loss, values))
    try:
        for part in parts:
            model._compile_loss(part.y, part.y_pred, part.weight)
    finally:
        for loss, _ in heard:
            del loss.call
    return heard


def is_mean(values, parts) -> bool:
    """Whether the value on all rows is the mean of the parts', weighted by their rows."""
    combined = sum(float(v) * p.rows for v, p in zip(values[1:], parts[1:], strict=True)) / parts[0].rows
    return bool(np.isclose(float(values[0]), combined, rtol=1e-3, atol=1e-6))


def message(what, values, parts) -> str:
    whole, first, second = (float(v) for v in values)
    return (
        f"{what} is not a mean over the rows of a batch: {whole:.6g} on {parts[0].rows} rows, {first:.6g} and "
        f"{second:.6g} on its parts of {parts[1].rows} and {parts[2].rows}; slices of a batch cannot make it up. "
        'Return one value per row instead (with reduction="sum" for a sum)'
    )


def _check_metrics(model, parts) -> dict[int, bool]:
    """{index in _user_metrics: whether its state on all rows is the sum of its states on the parts}.

    Where a state does not change at all, the answer would say nothing, and counts as no.
    """
    compiled, states = model._compile_metrics, []
    if compiled is None or not _user_metrics(model):
        return {}
    compiled.update_state(parts[0].y, parts[0].y_pred, parts[0].weight)  # builds them
    own = {i: metric for i, metric in enumerate(_user_metrics(model)) if metric in compiled.metrics}
    for part in parts:
        compiled.reset_state()
        start = {i: [v.numpy() for v in metric.variables] for i, metric in own.items()}
        compiled.update_state(part.y, part.y_pred, part.weight)
        states.append(
            {
                i: [v.numpy() - old for v, old in zip(metric.variables, start[i], strict=True)]
                for i, metric in own.items()
            }
        )
    return {i: all(map(adds_up, *(state[i] for state in states))) for i in own}


def adds_up(whole, one, other) -> bool:
    return bool(np.any(one) and np.any(other) and np.allclose(whole, one + other, rtol=1e-3, atol=1e-6))


@contextlib.contextmanager
def _state_kept(model):
    """Forward passes may count, draw seeds, or collect; afterwards it is as if they had not been.

    Metrics are empty before the first step, also those that come into being here.
    """
    kept = [(v, v.numpy()) for v in [*model.variables, *model.metrics_variables]]
    try:
        yield
    finally:
        for variable, value in kept:
            if not np.array_equal(variable.numpy(), value):
                variable.assign(value)
        model.reset_metrics()


def _user_losses(model) -> list:
    """What the user wrote of compile(loss=...): Loss objects, or, before they are built, what was given."""
    compiled = model._compile_loss
    if compiled is None:
        return []
    if compiled.built:
        return [entry.loss for entry in compiled._flat_losses if _is_users(entry.loss)]
    given = [loss for loss in tf.nest.flatten(compiled._user_loss) if loss is not None]
    return [loss for loss in given if (loss in _OF_WHOLE_BATCHES if isinstance(loss, str) else _is_users(loss))]


def _is_users(function) -> bool:
    """Whether the user wrote this loss or metric, or the function that it wraps.

    Also of Keras' own, those which can depend on the whole batch; with axis=..., Dice and Tversky do not.
    """
    function = getattr(function, "fn", function)
    name = getattr(function, "__name__", None) or type(function).__name__
    if name.lower() in _OF_WHOLE_BATCHES:
        return True
    module = getattr(function, "__module__", None) or type(function).__module__
    return not module.startswith("keras.")


def _user_metrics(model) -> list:
    """The metrics whose update the user wrote; before they are built, what compile() was given."""
    compiled = model._compile_metrics
    found = [m for m in model._metrics if m is not compiled and metrics.written_by_user(m)]
    if compiled is None:
        return found
    if compiled.built:
        return found + [m for m in compiled.metrics if metrics.written_by_user(m)]
    given = tf.nest.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
    given = [m for m in given if m is not None and not isinstance(m, str)]
    return found + [m for m in given if (metrics.written_by_user(m) if hasattr(m, "update_state") else _is_users(m))]


def _own_compute_loss(model) -> bool:
    return not type(model).compute_loss.__module__.startswith("keras.")


def _adds_losses(model) -> bool:
    """Whether losses can come from layers: the user's own, what has called add_loss(), and activity regularizers, which
    Keras divides by the rows of the batch since 3.14, and only sums before."""
    return any(
        getattr(layer, "_losses", None)
        or getattr(layer, "activity_regularizer", None) is not None
        or not type(layer).__module__.startswith("keras.")
        for layer in model._flatten_layers(include_self=True)
    )


def _forward(model, x):
    return model(x, training=False) if model._call_has_training_arg else model(x)


def _unpack(batch):
    from keras.src.trainers.data_adapters.data_adapter_utils import unpack_x_y_sample_weight

    return unpack_x_y_sample_weight(batch)


def between(structure, start: int, stop: int):
    """Rows start .. stop - 1 of every tensor of a structure."""

    def cut(leaf):
        return leaf if leaf is None or not len(leaf.shape) else leaf[start:stop]

    return tf.nest.map_structure(cut, structure)
