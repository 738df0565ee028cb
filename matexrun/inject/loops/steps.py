"""A train_step that the user has written for Model.fit is tried on its first batch like any training function."""

import tensorflow as tf

from matexrun.inject import lifecycle, slices
from matexrun.inject.loops.batch import Arguments
from matexrun.inject.loops.functions import Boundary
from matexrun.inject.tensorflow import warn


def tried(train_step, batch, rows: int, settled: list = ()):
    """(as_sum, kinds of the flat logs) for `step.Step` and `outputs.combine_logs`, or (None, None) where a trial is
    impossible (ragged and sparse batches, a batch of one row). Collective; variables are left as they were.

    batch, rows: this rank's slice of the first batch, and its n_r.  settled: variables that may differ between ranks,
    because they are made equal before they are used: moving statistics (`state.settle`).
    """
    if any(isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)) for leaf in tf.nest.flatten(batch)):
        return None, None
    arguments = Arguments((tf.nest.map_structure(lambda leaf: _whole(leaf, rows), batch),), {})
    if arguments.rows is None or arguments.rows < 2:
        return None, None
    function = tf.function(train_step)
    boundary = Boundary(function, type(function).__call__.__wrapped__)
    plan = boundary.plan(arguments)
    if plan is None:
        return None, None
    known = {id(variable.handle) for variable in settled}
    changed = [variable for variable, _ in plan.changes if id(variable.handle) not in known]
    if changed:
        names = ", ".join(repr(variable.name) for variable in changed)
        warn(
            f"train_step changes {names} by amounts that depend on the rows of a batch, and each rank keeps the value "
            "of its own rows; a keras.metrics.Mean or Sum has that of the whole batch on all ranks"
        )
    return boundary.as_sum, plan.outputs


def _whole(leaf, rows: int):
    """The rows of all ranks of one part of a batch."""
    if leaf is None or slices.rows_of(leaf) is None:
        return leaf
    return tf.constant(lifecycle.world().allgather_rows(tf.convert_to_tensor(leaf)[:rows].numpy()))
