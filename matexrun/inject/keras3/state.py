"""The state that all ranks share: the same start, averaged moving statistics, and a check that nothing has diverged."""

import tensorflow as tf

from matexrun.inject import replicas, step


def variables(model) -> list:
    """Everything that must be equal on all ranks: weights, seeds of random layers, the optimizer's variables."""
    found = {id(v): v for v in [*model.weights, *model.variables]}
    for metric_variable in model.metrics_variables:
        found.pop(id(metric_variable), None)
    found |= {id(v): v for v in getattr(model.optimizer, "variables", [])}
    return list(found.values())


def synchronise(model) -> None:
    """Give every rank rank 0's variables of the model and its optimizer; none before it is built and compiled.
    Collective."""
    if model.built and model.compiled:
        replicas.make_equal(variables(model))


def trained(model) -> list:
    """The variables that updates change: trainable weights, and the optimizer's."""
    return [*model.trainable_variables, *getattr(model.optimizer, "variables", [])]


def settle(model) -> None:
    """Make the weights that no optimizer updates equal on all ranks again. Collective."""
    replicas.settle(model.non_trainable_weights)


def snapshot(model) -> list:
    """[(variable, its value now)] of the weights that a forward pass may change by itself. Reads only: values are
    copied when a variable is written."""
    return [(v, tf.convert_to_tensor(v.value)) for v in model.non_trainable_weights]


def rollback(counts, saved: list) -> None:
    """Where this rank's row was only borrowed (`counts` is False), put `saved` back; but for variables that the step
    has left equal on all ranks."""
    settled = step.current().settled
    saved = [(variable, old) for variable, old in saved if id(variable.handle) not in settled]
    if saved:
        tf.cond(counts, lambda: None, lambda: [variable.assign(old) for variable, old in saved] and None)
