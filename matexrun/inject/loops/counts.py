"""n_r and n as variables, which traced functions read: one trace serves whole batches and slices of any number."""

import functools

import tensorflow as tf

from matexrun.inject import lifecycle


class Counts:
    """rows: n_r, total: n (int32 scalar variables).  split: whether a batch that a function takes from a dataset by
    itself is to be split (bool scalar variable)."""

    def __init__(self):
        with tf.init_scope(), tf.device("/CPU:0"):
            self.rows = tf.Variable(0, dtype=tf.int32, trainable=False, name="matexrun_rows")
            self.total = tf.Variable(1, dtype=tf.int32, trainable=False, name="matexrun_total")
            self.split = tf.Variable(False, trainable=False, name="matexrun_split")
        self._now = None

    def set(self, rows: int, total: int) -> None:
        """This rank computes `rows` of the batch's `total` rows."""
        if self._now != (rows, total):
            self.rows.assign(rows)
            self.total.assign(total)
            self._now = rows, total

    def draw(self, rows: tf.Tensor, total: tf.Tensor) -> None:
        """The same in the graph of a function that has drawn a batch. In variables, because functions that it calls are
        traced once and called from other graphs, too."""
        self.rows.assign(rows)
        self.total.assign(total)

    def whole(self, total: int) -> None:
        """Every rank computes the whole batch, and rank 0's counts."""
        self.set(total if lifecycle.rank() == 0 else 0, total)

    def forget(self) -> None:
        """A function has drawn batches, and left its last numbers."""
        self._now = None

    @property
    def mine(self) -> int:
        """n_r as set last."""
        return self._now[0]

    @property
    def share(self) -> float:
        """n_r / n as set last."""
        return self._now[0] / max(self._now[1], 1)


@functools.cache
def counts() -> Counts:
    """Those of this process; made at the first use."""
    return Counts()
