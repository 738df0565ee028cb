"""Weights that have diverged between the ranks are found by their checksums: after the first update, after every
--check-every updates, and at the end of training. Compares only; nothing is changed.
"""

import weakref
import zlib

import numpy as np
import tensorflow as tf

from matexrun.errors import ContractError
from matexrun.inject import lifecycle

_watches: list = []  # weak references to those of hand-written loops, in the order of their making


def checksums(values: list) -> list[int]:
    """One for each array or eager tensor."""
    return [zlib.crc32(np.ascontiguousarray(value).view(np.uint8).reshape(-1).data) for value in values]


def assert_equal(checked: list, when: str = "after an update") -> None:
    """Raise ContractError where one of these variables of Keras or TensorFlow differs between ranks, naming the first.
    Collective."""
    theirs = lifecycle.world().allgather_object(checksums([tf.convert_to_tensor(v) for v in checked]))
    for i, variable in enumerate(checked):
        for rank, sums in enumerate(theirs):
            if sums[i] != theirs[0][i]:
                name = getattr(variable, "path", variable.name).partition(":")[0]
                raise ContractError(
                    f"{when} the variable {name!r} on rank {rank} differs from rank 0's: the ranks did not compute the "
                    "same update (do they read the same data in the same order? does something set weights by the "
                    "process, the time or an unseeded number?)"
                )


class Watch:
    """Counts the updates of some variables. Instances are made and used in the same order on every rank.

    variables: () -> the variables that must be equal on all ranks.
    """

    def __init__(self, variables):
        self._variables, self._updates = variables, 0

    def updated(self, updates: int = 1) -> None:
        """So many updates were made. Collective. Raises ContractError where it is time to compare, and ranks differ."""
        before, self._updates = self._updates, self._updates + updates
        every = lifecycle.job().check_every
        if not before or (every and before // every != self._updates // every):
            self.check()

    def check(self) -> None:
        """Compare now. Collective. Raises ContractError."""
        if self._updates:
            assert_equal(self._variables(), f"after update {self._updates}")

    def check_at_end(self) -> "Watch":
        """Have the variables compared once more when the script has ended well: a loop of the user's has no end that
        could be seen before."""
        if not _watches:
            lifecycle.at_end(_check_all)
        _watches.append(weakref.ref(self))
        return self


def _check_all() -> None:
    for reference in _watches:
        watch = reference()
        if not lifecycle.world().any(watch is None):  # ranks need not collect their garbage at the same time
            watch.check()
