"""The state that all ranks share: the same start, averaged moving statistics, and a check that nothing has diverged."""

import itertools

import numpy as np
import tensorflow as tf

from matexrun.errors import ContractError
from matexrun.inject import lifecycle, step
from matexrun.inject.divergence import checksums


def variables(model) -> list:
    """Everything that must be equal on all ranks: weights, seeds of random layers, the optimizer's variables."""
    found = {id(v): v for v in [*model.weights, *model.variables]}
    for metric_variable in model.metrics_variables:
        found.pop(id(metric_variable), None)
    found |= {id(v): v for v in getattr(model.optimizer, "variables", [])}
    return list(found.values())


def synchronise(model) -> None:
    """Give every rank rank 0's variables of the model and its optimizer. Collective. Raises as `make_equal`."""
    make_equal(variables(model))


def make_equal(mine: list) -> None:
    """Give every rank rank 0's values of these variables of Keras or TensorFlow. Collective. Raises ContractError where
    the ranks have different variables."""
    world = lifecycle.world()
    described = [(getattr(v, "path", v.name), tuple(v.shape), str(v.dtype)) for v in mine]
    theirs = world.allgather_object((described, checksums([tf.convert_to_tensor(v) for v in mine])))
    for rank, (described, _) in enumerate(theirs):
        if described != theirs[0][0]:
            pairs = itertools.zip_longest(theirs[0][0], described)
            expected, came = next(pair for pair in pairs if pair[0] != pair[1])
            raise ContractError(
                f"the model on rank {rank} is not the one on rank 0: expected the variable {expected}, found {came}; "
                "build the same model on every rank"
            )
    differing = [v for v, *sums in zip(mine, *(sums for _, sums in theirs), strict=True) if len(set(sums)) > 1]
    _replace(differing, world.broadcast_arrays)


def _replace(chosen: list, make_equal) -> None:
    """Give variables the values that the collective `make_equal` puts into arrays of theirs, in place."""
    arrays = [np.array(v) for v in chosen]  # copies: .numpy() of a scalar is none
    if arrays:
        make_equal(arrays)
    for variable, array in zip(chosen, arrays, strict=True):
        variable.assign(array)


def trained(model) -> list:
    """The variables that updates change: trainable weights, and the optimizer's."""
    return [*model.trainable_variables, *getattr(model.optimizer, "variables", [])]


def settle(model) -> None:
    """Make the weights that no optimizer updates equal on all ranks again. Collective."""
    settle_variables(model.non_trainable_weights)


def settle_variables(mine: list) -> None:
    """Make these variables of Keras or TensorFlow equal on all ranks. Collective.

    Floats are averaged: BatchNormalization's moving statistics, which each rank has taken from its own slices. Others,
    like counters, are rank 0's, which has rows of every batch.
    """
    world = lifecycle.world()
    theirs = world.allgather_object(checksums([tf.convert_to_tensor(v) for v in mine]))
    differing = [v for i, v in enumerate(mine) if len({sums[i] for sums in theirs}) > 1]
    for is_float, make_equal in ((True, world.mean_arrays), (False, world.broadcast_arrays)):
        _replace([v for v in differing if tf.as_dtype(v.dtype).is_floating is is_float], make_equal)


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
