"""User-written losses and metrics of a tf_keras model are tried once, on the first batch, as told in `probing`."""

import tensorflow as tf

from matexrun.inject import probing
from matexrun.inject.tf_keras.data import Slice
from matexrun.inject.tf_keras.metrics import updates


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
        with probing.state_kept(model, model.variables):
            whole = probing.Part(model, _forward, *data)
            _build_compiled(model, whole)  # on all ranks, also on one without rows to try
            if rows >= 2:
                halves = [probing.between(data, 0, rows // 2), probing.between(data, rows // 2, rows)]
                parts = [whole, *(probing.Part(model, _forward, *half) for half in halves)]
                problems = _check_losses(model, parts)
                adds_up = _check_metrics(model, parts)
    probing.decide(problems, adds_up, rows >= 2 or not wanted, _user_metrics(model), updates.additive)


def _build_compiled(model, part) -> None:
    """Have the objects that compile(loss=..., metrics=...) stands for."""
    if model.compiled_loss is not None and not model.compiled_loss.built:
        model.compiled_loss.build(part.y_pred)
    if model.compiled_metrics is not None and not model.compiled_metrics.built and part.y is not None:
        model.compiled_metrics.build(part.y_pred, part.y)


def reason_against_jit(model) -> str | None:
    """Why XLA cannot compile this model's step, or None."""
    return probing.reason_against_jit(model, "tf_keras.", _user_metrics(model), updates.additive)


def _forward(model, x):
    return model(x, training=False)


def _check_losses(model, parts) -> list[str]:
    def own(part):
        return model.compute_loss(part.x, part.y, part.y_pred, part.weight)

    def compute(part):
        model.compiled_loss(part.y, part.y_pred, part.weight)

    own = own if _own_compute_loss(model) else None
    return probing.loss_problems(parts, own, "a loss added by a layer (add_loss)", _user_losses(model), compute)


def _check_metrics(model, parts) -> dict[int, bool]:
    """{index in _user_metrics: whether its state on all rows is the sum of its states on the parts}."""
    compiled = model.compiled_metrics
    if compiled is None or not compiled.built:
        return {}

    def update(part):
        compiled.update_state(part.y, part.y_pred, part.weight)

    update(parts[0])  # some make variables only now
    own = {i: metric for i, metric in enumerate(_user_metrics(model)) if metric in compiled.metrics}
    states = probing.metric_states(parts, own, model.reset_metrics, update)
    # Without variables, a metric keeps its state where we cannot see it.
    return {i: bool(states[0][i]) and probing.add_up(states, i) for i in own}


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
    compiled, found = model.compiled_metrics, [m for m in model.metrics if updates.written_by_user(m)]
    if compiled is None or compiled.built:
        return found
    given = tf.nest.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
    given = [m for m in given if m is not None]
    return found + [m for m in given if (updates.written_by_user(m) if hasattr(m, "update_state") else _is_users(m))]


def _own_compute_loss(model) -> bool:
    return not type(model).compute_loss.__module__.startswith("tf_keras.")


def _adds_losses(model) -> bool:
    """Whether losses can come from layers: the user's own, and those that model.add_loss() makes."""
    layers = [layer for layer in model._flatten_layers() if not hasattr(layer, "update_state")]
    return any(type(one).__name__ == "AddLoss" or not type(one).__module__.startswith("tf_keras.") for one in layers)


def _unpack(data):
    from tf_keras.src.engine.data_adapter import unpack_x_y_sample_weight

    return unpack_x_y_sample_weight(data)
