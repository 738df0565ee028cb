"""User-written losses and metrics are tried once, on the first batch: is the whole what its parts say it is?

Keras' own losses and metrics are known to combine. For a function of the user's there is no telling from the outside,
so its value on this rank's rows is compared with the combination of its values on two parts of them.
"""

import tensorflow as tf

from matexrun.inject import probing
from matexrun.inject.keras3.metrics import updates

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
        with probing.state_kept(model, [*model.variables, *model.metrics_variables]):
            cuts = ((0, rows), (0, rows // 2), (rows // 2, rows))
            parts = [probing.Part(model, _forward, *probing.between((x, y, weight), *cut)) for cut in cuts]
            problems = _check_losses(model, parts)
            adds_up = _check_metrics(model, parts)
    able = rows >= 2 or not needed(model)
    probing.decide(problems, adds_up, able, _user_metrics(model), updates.additive)


def reason_against_jit(model) -> str | None:
    """Why XLA cannot compile this model's step, or None."""
    return probing.reason_against_jit(model, "keras.", _user_metrics(model), updates.additive)


def _check_losses(model, parts) -> list[str]:
    def own(part):
        return model._compute_loss(part.x, part.y, part.y_pred, part.weight, training=False)

    def compute(part):
        model._compile_loss(part.y, part.y_pred, part.weight)

    by_user = _own_compute_loss(model)
    if not by_user and _user_losses(model):
        compute(parts[0])  # builds them
    added = "a loss added by a layer (add_loss, activity_regularizer)"
    return probing.loss_problems(parts, own if by_user else None, added, _user_losses(model), compute)


def _check_metrics(model, parts) -> dict[int, bool]:
    """{index in _user_metrics: whether its state on all rows is the sum of its states on the parts}."""
    compiled = model._compile_metrics
    if compiled is None or not _user_metrics(model):
        return {}

    def update(part):
        compiled.update_state(part.y, part.y_pred, part.weight)

    update(parts[0])  # builds them
    own = {i: metric for i, metric in enumerate(_user_metrics(model)) if metric in compiled.metrics}
    states = probing.metric_states(parts, own, compiled.reset_state, update)
    return {i: probing.add_up(states, i) for i in own}


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
    found = [m for m in model._metrics if m is not compiled and updates.written_by_user(m)]
    if compiled is None:
        return found
    if compiled.built:
        return found + [m for m in compiled.metrics if updates.written_by_user(m)]
    given = tf.nest.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
    given = [m for m in given if m is not None and not isinstance(m, str)]
    return found + [m for m in given if (updates.written_by_user(m) if hasattr(m, "update_state") else _is_users(m))]


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
