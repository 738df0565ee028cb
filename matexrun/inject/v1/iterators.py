"""Elements of tf.data iterators in graphs: sliced in the graph, in the runs that train.

Session.run feeds the switch `splits`; without it every rank gets the whole element. Elements are split where all of
their parts have a first dimension that is unknown until they come, which is what `batch()` makes. A known first
dimension (`drop_remainder=True`) is a promise to the script's own code, which slices would break.
"""

import dataclasses

import tensorflow as tf

from matexrun.inject import lifecycle, patching
from matexrun.inject.slices import bounds
from matexrun.inject.v1 import graphs


@dataclasses.dataclass(eq=False)
class Element:
    """raw: the tensors of the whole element.  rows: the Rows of it that this rank computes."""

    raw: list
    rows: graphs.Rows


def patch() -> None:
    """Patch tf.compat.v1.data.Iterator.get_next."""

    @patching.method(tf.compat.v1.data.Iterator, "get_next", ("name",))
    def get_next(original, self, name=None):
        element = original(self, name)
        leaves = tf.nest.flatten(element)
        if not graphs.building() or not all(map(_splittable, leaves)):
            return element
        return _split(element, leaves)


def _splittable(leaf) -> bool:
    return isinstance(leaf, tf.Tensor) and graphs.of_rows(leaf.shape)


def _split(element, leaves):
    state = graphs.state()
    rank, size = lifecycle.rank(), lifecycle.job().size
    with state.ours():
        total = tf.shape(leaves[0], out_type=tf.int64)[0]
        start, rows = bounds(total, rank, size)

        none, borrows = tf.zeros_like(total), tf.equal(rows, 0)
        mine = graphs.Rows(
            tf.where(state.splits, tf.where(borrows, none, start), none),
            tf.where(state.splits, tf.where(borrows, tf.minimum(total, tf.ones_like(total)), rows), total),
            tf.where(state.splits, rows, total if rank == 0 else none),
            total,
        )
        known = Element(leaves, mine)
        sliced = [leaf[mine.start : mine.start + mine.take] for leaf in leaves]
        for leaf, part in zip(leaves, sliced, strict=True):
            part.set_shape(leaf.shape)
            state.elements[part.op] = known
    return tf.nest.pack_sequence_as(element, sliced)
