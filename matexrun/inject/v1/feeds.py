"""Splitting what Session.run is fed: which feeds are parts of a batch, and this rank's rows of them.

Parts of a batch are the feeds of placeholders whose first dimension is unknown; those with another number of rows than
most of them are left whole. Whether that was right, the probe tells.
"""

import collections
import dataclasses
import functools

import numpy as np
import tensorflow as tf

from matexrun.inject import patching, slices
from matexrun.inject.v1 import graphs


@dataclasses.dataclass(frozen=True)
class Slice:
    """Rows [start, start + take) of `total`; `rows` of them count (0 where the one row taken is borrowed)."""

    start: int
    take: int
    rows: int
    total: int

    def feeds(self, state) -> dict:
        """The values of the graph's switches."""
        fed = state.fed
        return {
            fed.start.ref(): np.int64(self.start),
            fed.take.ref(): np.int64(self.take),
            fed.rows.ref(): np.int64(self.rows),
            fed.total.ref(): np.int64(self.total),
        }


def mine(total: int) -> Slice:
    """This rank's slice of `total` rows."""
    return Slice(*slices.mine(total), total)


class Batch:
    """The parts of a batch among `feeds` ({tensor.ref(): array}): `dense` ones, and triples of `sparse` ones (refs).

    total: its rows, 0 where there is no batch; `reason` then says why.
    """

    def __init__(self, state, feeds: dict):
        sparse = [triple for triple in state.sparse if all(ref in feeds for ref in triple)]
        parts = {ref for triple in sparse for ref in triple}
        dense = [r for r, v in feeds.items() if graphs.may_have_rows(r.deref().op) and v.ndim and r not in parts]
        counts = collections.Counter(len(feeds[ref]) for ref in dense)
        counts.update(int(feeds[shape][0]) for _, _, shape in sparse)
        (self.total, votes), *others = counts.most_common() or [(0, 0)]
        self.reason = ""
        if not counts:
            shapes = {ref.deref().name: ref.deref().shape for ref, value in feeds.items() if value.ndim}
            fixed = [
                name
                for name, shape in shapes.items()
                if shape.rank and not graphs.of_rows(shape) and shape.as_list()[0] > 1
            ]
            self.reason = "no batch is fed to it through a placeholder whose first dimension is None" + (
                f" (the first dimension of {', '.join(fixed)} is fixed)" if fixed else ""
            )
        elif others and others[0][1] == votes:
            self.total = 0
            self.reason = "the feeds differ in their first dimensions: " + ", ".join(
                f"{ref.deref().name} has {len(feeds[ref])} rows" for ref in dense
            )
        self.dense = [ref for ref in dense if len(feeds[ref]) == self.total]
        self.sparse = [triple for triple in sparse if int(feeds[triple[2]][0]) == self.total]

    @property
    def ops(self) -> set:
        """The placeholders of its parts."""
        return {ref.deref().op for ref in (*self.dense, *(ref for triple in self.sparse for ref in triple))}

    def sliced(self, feeds: dict, rows: Slice) -> dict:
        """`feeds` with this batch's parts cut down to `rows`."""
        feeds = dict(feeds)
        for ref in self.dense:
            feeds[ref] = feeds[ref][rows.start : rows.start + rows.take]
        for indices, values, shape in self.sparse:
            numbers = feeds[indices]
            inside = (numbers[:, 0] >= rows.start) & (numbers[:, 0] < rows.start + rows.take)
            numbers = numbers[inside]
            numbers[:, 0] -= rows.start
            feeds[indices], feeds[values] = numbers, feeds[values][inside]
            feeds[shape] = np.array([rows.take, *feeds[shape][1:]], feeds[shape].dtype)
        return feeds


def patch() -> None:
    """Patch tf.compat.v1.sparse_placeholder, whose three placeholders belong together."""
    original = tf.compat.v1.sparse_placeholder
    patching.check_signature(original, ("dtype", "shape", "name"))

    @functools.wraps(original)
    def sparse_placeholder(*args, **kwargs):
        made = original(*args, **kwargs)
        state = graphs.state()
        state.sparse.append((made.indices.ref(), made.values.ref(), made.dense_shape.ref()))
        return made

    patching.everywhere(original, sparse_placeholder, "tensorflow")
