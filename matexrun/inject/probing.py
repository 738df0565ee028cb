"""How user-written losses and metrics of a model are tried on the first batch, in Keras 3 and in tf_keras.

A value on this rank's rows is compared with the combination of its values on two parts of them. The `probe` of each
Keras knows what the user wrote, and how a model computes it.
"""

import contextlib

import numpy as np
import tensorflow as tf

from matexrun.collectives import ops
from matexrun.errors import InexactError
from matexrun.inject import lifecycle, sparse
from matexrun.inject.tensorflow import warn


class Part:
    """Some rows, the predictions of predict(model, x) for them, and the losses that the model's layers added."""

    def __init__(self, model, predict, x, y, weight):
        self.x, self.y, self.weight = x, y, weight
        self.rows = len(tf.nest.flatten(x)[0])
        self.y_pred = predict(model, x)
        self.added = [float(tf.reduce_sum(loss)) for loss in model.losses]


def between(structure, start: int, stop: int):
    """Rows start .. stop - 1 of every tensor of a structure."""

    def cut(leaf):
        return leaf if leaf is None or not len(leaf.shape) else leaf[start:stop]

    return tf.nest.map_structure(cut, structure)


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


def reason_against_jit(model, package: str, metrics: list, additive) -> str | None:
    """Why XLA cannot compile this model's step, or None.

    package: that of Keras, with a dot.  metrics: those that the user wrote; additive: those of them that add up.
    """
    if not ops.supports_jit():
        return "the collectives run as numpy_function here"
    # In a step of the user's, gradients are combined before it is known what becomes of them.
    optimizer = model.optimizer if type(model).train_step.__module__.startswith(package) else None
    for layer in model._flatten_layers():
        if type(layer).__name__ == "Embedding" and layer.trainable and not sparse.compilable(optimizer):
            return (
                f"the gradient of the layer {layer.name!r} consists of slices, and XLA cannot gather them "
                "(--sparse tells which optimizers can do without)"
            )
    for metric in metrics:
        if metric not in additive:
            name = getattr(metric, "name", None) or getattr(metric, "__name__", metric)
            return f"the metric {name!r} is not a sum over rows, and XLA cannot gather rows from the other ranks"
    return None


def loss_problems(parts: list, own, added: str, losses: list, compute) -> list[str]:
    """What keeps the losses of the first part, the whole, from being made up by those of the others.

    own: part -> what the user's compute_loss() gives, or None without one; then nothing else matters.  added: what to
    call a loss that layers add.  losses: the Loss objects that the user wrote; compute(part) calls them all.
    """
    if own is not None:
        values = [own(part) for part in parts]
        return [] if _is_mean(values, parts) else [_message("compute_loss() of the model", values, parts)]
    problems = []
    for i in range(len(parts[0].added)):
        values = [part.added[i] if i < len(part.added) else np.nan for part in parts]
        if not _is_mean(values, parts):
            problems.append(_message(added, values, parts))
    for loss, values in _heard(losses, parts, compute):
        if values[0].shape.rank == 0:
            if not _is_mean(values, parts):
                problems.append(_message(f"the loss {loss.name!r}", values, parts))
        elif not np.allclose(values[0], tf.concat(values[1:], 0), rtol=1e-2, atol=1e-5):
            problems.append(
                f"the loss {loss.name!r} gives a row another value when it is computed with other rows: it depends on "
                "the whole batch, and slices of the batch cannot make it up"
            )
    return problems


def _heard(losses: list, parts: list, compute) -> list:
    """[(loss, [what it returned for each part])]. They are called as in a step, by the object that knows what output
    each belongs to, and listened to."""
    if not losses:
        return []
    heard = []
    for loss in losses:
        values, call = [], loss.call
        loss.call = lambda *args, values=values, call=call: (
            values.append(tf.convert_to_tensor(call(*args))) or values[-1]
        )
        heard.append((loss, values))
    try:
        for part in parts:
            compute(part)
    finally:
        for loss, _ in heard:
            del loss.call
    return heard


def _is_mean(values, parts) -> bool:
    """Whether the value on all rows is the mean of the parts', weighted by their rows."""
    combined = sum(float(v) * p.rows for v, p in zip(values[1:], parts[1:], strict=True)) / parts[0].rows
    return bool(np.isclose(float(values[0]), combined, rtol=1e-3, atol=1e-6))


def _message(what, values, parts) -> str:
    whole, first, second = (float(v) for v in values)
    return (
        f"{what} is not a mean over the rows of a batch: {whole:.6g} on {parts[0].rows} rows, {first:.6g} and "
        f"{second:.6g} on its parts of {parts[1].rows} and {parts[2].rows}; slices of a batch cannot make it up. "
        'Return one value per row instead (with reduction="sum" for a sum)'
    )


def metric_states(parts: list, own: dict, reset, update) -> list[dict]:
    """[{i: what the part adds to each variable of the metric own[i]}], one for each part; reset() empties all metrics,
    and update(part) updates them."""
    states = []
    for part in parts:
        reset()
        start = {i: [v.numpy() for v in metric.variables] for i, metric in own.items()}
        update(part)
        states.append(
            {i: [v.numpy() - old for v, old in zip(m.variables, start[i], strict=True)] for i, m in own.items()}
        )
    return states


def add_up(states: list[dict], i: int) -> bool:
    """Whether metric i's state on all rows is the sum of its states on the parts.

    Where a state does not change at all, the answer would say nothing, and counts as no.
    """
    return all(map(_adds_up, *(state[i] for state in states)))


def _adds_up(whole, one, other) -> bool:
    return bool(np.any(one) and np.any(other) and np.allclose(whole, one + other, rtol=1e-3, atol=1e-6))


@contextlib.contextmanager
def state_kept(model, variables: list):
    """Forward passes may count, draw seeds, or collect; afterwards `variables` are as if they had not been.

    Metrics are empty before the first step, also those that come into being here.
    """
    kept = [(v, v.numpy()) for v in variables]
    try:
        yield
    finally:
        for variable, value in kept:
            if not np.array_equal(variable.numpy(), value):
                variable.assign(value)
        model.reset_metrics()
