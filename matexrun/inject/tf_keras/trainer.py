"""The step: each rank runs the model's own train_step or test_step on its slice; what leaves the step is global.

Before the first step the model is built from the first batch where it is not built yet, rank 0's variables are
broadcast, and user-written losses and metrics are probed.
"""

import functools
import weakref

import tensorflow as tf

from matexrun.collectives import ops
from matexrun.errors import UsageError
from matexrun.inject import divergence, entries, outputs, patching, slices, step
from matexrun.inject.loops import steps
from matexrun.inject.tensorflow import warn
from matexrun.inject.tf_keras import losses, probe, state
from matexrun.inject.tf_keras.data import Slice

_trials: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()  # model: what a trial of the user's step has found


def patch() -> None:
    """Patch the steps of Model and of every subclass, the makers of the functions around them, and the entry points."""
    from tf_keras.src.engine.training import Model

    patching.overrides(Model, "train_step")(functools.partial(_step, name="train_step"))
    patching.overrides(Model, "test_step")(functools.partial(_step, name="test_step"))

    @patching.overrides(Model, "predict_step")
    def predict_step(original, self, data):
        """What is predicted for the slice, and [n_r], for `_gathering`."""
        if not isinstance(data, Slice):
            return original(self, data)
        return original(self, data.data), tf.reshape(data.rows, [1])

    for name in ("train", "test"):
        patching.method(Model, f"make_{name}_function", ("force",))(functools.partial(_make_function, name=name))

    @patching.method(Model, "make_predict_function", ("force",))
    def make_predict_function(original, self, force=False):
        if self.predict_function is None or force:
            self.predict_function = _gathering(original(self, force))
        return self.predict_function

    entries.patch(Model, state)


def _step(original, model, data, *, name: str):
    if not isinstance(data, Slice):  # super().train_step(), or one that the script calls itself
        return original(model, data)
    training, by_user = name == "train_step", _is_users(model, name)
    as_sum, kinds = _trials.get(model, (None, None)) if training else (None, None)
    current = step.Step(
        data.rows,
        data.total,
        training,
        ops.Order(),
        jit=bool(model.jit_compile),
        eager=tf.executing_eagerly(),
        by_tape=training and by_user,
        by_hand=training and by_user,
        as_sum=as_sum,
    )
    with step.entered(current):
        saved = state.snapshot(model) if training else []
        logs = original(model, data.data)
        state.rollback(current.counts, saved)
        return outputs.combine_logs(logs, current, kinds) if by_user else logs


def _is_users(model, name: str) -> bool:
    """Whether the user has written this step of the model's."""
    return not getattr(type(model), name).__module__.startswith("tf_keras.")


def _make_function(original, model, force=False, *, name: str):
    """`train_function` or `test_function`: takes an iterator, runs one execution, returns logs.

    The work around the first call happens here.
    """
    attribute = f"{name}_function"
    if getattr(model, attribute) is not None and not force:
        return getattr(model, attribute)
    function, begun = original(model, force), False
    watch = divergence.Watch(functools.partial(state.trained, model))

    def run(iterator):
        nonlocal begun
        if not begun:
            iterator = _prepare(model, iterator, name)
            begun = True
        logs = function(iterator)
        if name == "train":
            watch.updated(_steps(model))
        return logs

    setattr(model, attribute, run)
    return run


def _steps(model) -> int:
    """Steps in one execution of the functions."""
    return 1 if model.steps_per_execution is None else int(model.steps_per_execution)


def _prepare(model, iterator, name: str):
    """Everything that must be true before the first forward pass. Returns the iterator to use for the first call."""
    by_user = name == "train" and _is_users(model, "train_step")
    losses.check(model)
    if not model.built or probe.needed(model) or by_user:
        first = next(iterator)
        if not model.built:
            probe.build(model, first.data)
        probe.check(model, first)
        if by_user:
            settled = state.weights(model, "non_trainable_weights")
            _trials[model] = steps.tried(model.train_step, first.data, int(first.rows), settled)
        iterator = slices.put_back(first, iterator, _steps(model))
    for layer in model._flatten_layers():
        if getattr(layer, "states", None) is not None and getattr(layer, "stateful", False):
            raise UsageError(
                f"the layer {layer.name!r} keeps the state of each row from one batch to the next (stateful=True), "
                "and its batch size is fixed, so batches cannot be split: use stateful=False"
            )
    if model.jit_compile:
        reason = probe.reason_against_jit(model)
        if reason:
            warn(f"jit_compile is switched off, because {reason}")
            model._jit_compile = False  # the property would throw away the function that is about to be traced
    state.synchronise(model)
    return iterator


def _gathering(predict_function):
    """`model.predict_function`, with the outputs of the whole batches, where the step gives those of slices."""

    def run(iterator):
        predicted, rows = predict_function(iterator)
        rows = rows.numpy().tolist()
        return tf.nest.map_structure(lambda output: outputs.gather(output, rows), predicted)

    return run
