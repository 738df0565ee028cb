"""The same variables on all ranks: rank 0's values before training, means of what each rank changed from its own rows.

For variables of Keras and TensorFlow alike, eagerly; every function is collective.
"""

import itertools

import numpy as np
import tensorflow as tf

from matexrun.errors import ContractError
from matexrun.inject import lifecycle
from matexrun.inject.divergence import checksums


def make_equal(mine: list) -> None:
    """Give every rank rank 0's values of these variables. Raises ContractError where the ranks have different ones."""
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


def settle(mine: list) -> None:
    """Make these variables equal on all ranks.

    Floats are averaged: BatchNormalization's moving statistics, which each rank has taken from its own slices. Others,
    like counters, are rank 0's, which has rows of every batch.
    """
    world = lifecycle.world()
    theirs = world.allgather_object(checksums([tf.convert_to_tensor(v) for v in mine]))
    differing = [v for i, v in enumerate(mine) if len({sums[i] for sums in theirs}) > 1]
    for is_float, make_equal in ((True, world.mean_arrays), (False, world.broadcast_arrays)):
        _replace([v for v in differing if tf.as_dtype(v.dtype).is_floating is is_float], make_equal)
