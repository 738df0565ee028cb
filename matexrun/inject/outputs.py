"""What leaves a step is the whole batch's: outputs of predict are gathered, numbers that a step returns averaged."""

import tensorflow as tf

from matexrun.collectives import ops
from matexrun.inject import lifecycle


def combine_logs(logs, current, kinds: list | None = None):
    """Numbers that a user's step returns: weighted by n_r/n, like the loss; what is global already stays as it is.

    kinds: of the flat logs, where a trial has found them (`loops.parts`): those that are sums are added up.
    """
    flat = tf.nest.flatten(logs)
    sums = [i for i, kind in enumerate(kinds or []) if kind == "sum"]
    means = [i for i, v in enumerate(flat) if tf.is_tensor(v) and v.shape.rank == 0 and v.dtype.is_floating]
    means = [i for i in means if i not in sums]
    own = [tf.where(current.counts, flat[i], tf.zeros_like(flat[i])) for i in sums]
    combined = ops.allreduce([flat[i] for i in means], current.order, factor=current.share)
    for i, value in zip([*means, *sums], [*combined, *ops.allreduce(own, current.order)], strict=True):
        flat[i] = value
    return tf.nest.pack_sequence_as(logs, flat)


def gather(output, rows: list[int]):
    """The outputs of all ranks, in the order of the batches. `rows` are this rank's rows of each step in `output`."""
    world = lifecycle.world()
    if isinstance(output, (tf.RaggedTensor, tf.SparseTensor)):
        return _composite(output, rows)
    array = output.numpy()
    per_row, rest = divmod(len(array), sum(max(r, 1) for r in rows)) if array.ndim else (0, 1)
    if rest:
        raise ValueError(
            f"predict: an output of shape {array.shape} for {sum(rows)} rows does not consist of rows; "
            "outputs of slices of a batch can only be put together row by row"
        )
    parts, start = [], 0
    for count in rows:
        parts.append(world.allgather_rows(array[start : start + count * per_row]))
        start += max(count, 1) * per_row
    return tf.concat([tf.convert_to_tensor(part) for part in parts], 0)


def _composite(output, rows: list[int]):
    """Ragged and sparse outputs travel as objects: they are rare, and NumPy has no form for them."""
    if len(rows) > 1:
        raise ValueError("predict: ragged and sparse outputs need steps_per_execution=1")
    if isinstance(output, tf.RaggedTensor):
        mine = tf.nest.map_structure(lambda t: t.numpy(), tf.nest.flatten(output[: rows[0]], expand_composites=True))
        spec = tf.RaggedTensorSpec.from_value(output)
        parts = [
            tf.nest.pack_sequence_as(spec, [tf.constant(a) for a in flat], expand_composites=True)
            for flat in lifecycle.world().allgather_object(mine)
        ]
        return tf.concat(parts, 0)
    kept = tf.sparse.slice(output, tf.zeros_like(output.dense_shape), [rows[0], *output.dense_shape[1:]])
    parts = lifecycle.world().allgather_object((kept.indices.numpy(), kept.values.numpy(), kept.dense_shape.numpy()))
    return tf.sparse.concat(0, [tf.SparseTensor(*part) for part in parts])
