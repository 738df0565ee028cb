"""The step: each rank runs the model's own train_step or test_step on its slice; what leaves the step is global.

Before the first step the model is built from the first batch where it is not built yet, rank 0's variables are
broadcast, and user-written losses and metrics are probed.
"""

import functools

import tensorflow as tf

from matexrun.collectives import ops
from matexrun.inject import divergence, entries, outputs, patching, per_rank, slices, step
from matexrun.inject.keras3 import probe, state
from matexrun.inject.loops import steps
from matexrun.inject.tensorflow import warn


def patch() -> None:
    """Patch the functions that TensorFlowTrainer makes for training, testing and prediction, and its entry points."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    @patching.method(TensorFlowTrainer, "_make_function", ("step_function",))
    def make_function(original, self, step_function):
        step_function = StepFunction(self, functools.partial(original, self), step_function)
        return lambda iterator: step_function(iterator)  # a plain function, as Keras' own: copies of a model share it

    @patching.method(TensorFlowTrainer, "make_predict_function", ("force",))
    def make_predict_function(original, self, force=False):
        if self.predict_function is None or force:
            original(self, force)
            self.predict_function = _gathering(self.predict_function)
        return self.predict_function

    entries.patch(TensorFlowTrainer, state)


class StepFunction:
    """Stands for `model.train_function` or `test_function`: takes an iterator, runs one execution, returns logs.

    TensorFlow traces it as it would without us; the work around the first call happens here.
    """

    def __init__(self, model, make, step_function):
        self._model, self._make, self._step_function = model, make, step_function
        self._training = getattr(step_function, "__name__", "") != "test_step"
        self._by_user = self._training and not _is_kerases_own(step_function)
        self._as_sum = self._kinds = None  # what a trial of the user's step has found
        self._watch = divergence.Watch(functools.partial(state.trained, model))
        self._run = None

    def __call__(self, iterator):
        if not isinstance(iterator, tf.data.Iterator):
            if self._training:
                per_rank.refuse("train_on_batch")
            iterator = map(slices.split, iterator)  # train_on_batch and test_on_batch
        if self._run is None:
            iterator = self._prepare(iterator)
            self._run = self._make(self._step)
        logs = self._run(iterator)
        if self._training:
            self._watch.updated(self._model.steps_per_execution)
        return logs

    def _prepare(self, iterator):
        """Everything that must be true before the first forward pass. Returns the iterator to use for the first
        call."""
        model = self._model
        if not model.built or probe.needed(model) or self._by_user:
            first = next(iterator)
            if not model.built:
                probe.build(model, first[0])
            probe.check(model, first)
            if self._by_user:
                batch, (rows, _) = first
                settled = model.non_trainable_weights
                self._as_sum, self._kinds = steps.tried(self._step_function, batch, int(rows), settled)
            iterator = slices.put_back(first, iterator, model.steps_per_execution)
        if model.jit_compile:
            reason = probe.reason_against_jit(model)
            if reason:
                warn(f"jit_compile is switched off, because {reason}")
                model.jit_compile = False
        state.synchronise(model)
        return iterator

    def _step(self, element):
        batch, (rows, total) = element
        model = self._model
        current = step.Step(
            rows,
            total,
            self._training,
            ops.Order(),
            jit=bool(model.jit_compile),
            eager=tf.executing_eagerly(),
            by_tape=self._by_user,
            by_hand=self._by_user,
            as_sum=self._as_sum,
        )
        with step.entered(current):
            saved = state.snapshot(model) if self._training else []
            logs = self._step_function(batch)
            state.rollback(current.counts, saved)
            if not _is_kerases_own(self._step_function):
                logs = outputs.combine_logs(logs, current, self._kinds)
        return logs


def _is_kerases_own(step_function) -> bool:
    """Whether Keras wrote the step, whose logs come from metrics and are global already."""
    return getattr(step_function, "__func__", step_function).__module__.startswith("keras.")


def _gathering(predict_function):
    """`model.predict_function` takes a list of elements; this one returns the outputs of the whole batches."""

    def run(elements):
        elements = [element if _is_split(element) else slices.split(element) for element in elements]
        predicted = predict_function([batch for batch, _ in elements])
        rows = [int(rows) for _, (rows, _) in elements]
        return tf.nest.map_structure(lambda output: outputs.gather(output, rows), predicted)

    return run


def _is_split(element) -> bool:
    return (
        isinstance(element, tuple)
        and len(element) == 2
        and isinstance(element[1], tuple)
        and len(element[1]) == 2
        and all(getattr(count, "shape", None) == () and count.dtype == tf.int32 for count in element[1])
    )
