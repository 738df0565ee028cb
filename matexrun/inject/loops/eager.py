"""Training loops that run eagerly: `for x, y in dataset` with a tape and an update in the loop's body.

There is no function whose arguments and results could be split and put together, so by default every rank computes
everything. With --eager-loops split, batches are sliced where the loop takes them from the dataset's iterator. Which
iterators feed updates shows itself: the first batch of each is computed whole; once an update has followed, those
after it are split. Until the loop takes its next batch, or ends, everything belongs to a step on a slice. Gradients,
and losses and metrics of Keras', are the whole batch's; numbers that the script computes itself are of its rank's rows.
"""

import threading
import weakref

import tensorflow as tf

from matexrun.collectives import ops
from matexrun.inject import lifecycle, slices, step
from matexrun.inject.loops.counts import counts
from matexrun.inject.tensorflow import warn

_training = weakref.WeakSet()  # iterators that have fed an update
_fresh = weakref.WeakSet()  # iterators that gave a batch since the last update
_loops: list = []  # [(weak reference to an iterator, its step or None)] of the loops that are running, innermost last


def taken(iterator, element):
    """What the script gets for the `element` that its iterator gave: this rank's slice where it trains on it."""
    if lifecycle.job().eager_loops != "split" or threading.current_thread() is not threading.main_thread():
        return element
    if step.current() is not None and step.current() is not step.surrounding():
        return element  # in a step of Keras'
    ended(iterator)
    current = None
    if iterator not in _training:
        _fresh.add(iterator)
    elif any(slices.rows_of(leaf) is not None for leaf in tf.nest.flatten(element)):
        element, (rows, total) = slices.split(element)
        counts().set(int(rows), int(total))
        current = _step()
    _loops.append((weakref.ref(iterator, lambda gone: _end(lambda other: other is gone)), current))
    step.surround(current)
    return element


def _step() -> step.Step:
    tape = lifecycle.job().reduce_at != "optimizer"
    return step.Step(
        counts().rows,
        counts().total,
        True,
        ops.Order(),
        jit=False,
        eager=True,
        by_tape=tape,
        by_hand=True,
        drawn=True,
    )


def ended(iterator) -> None:
    """The loop over this iterator, and those inside it, are over: it is exhausted, or takes its next batch."""
    _end(lambda other: other() is iterator)


def _end(is_it) -> None:
    for i, (other, _) in enumerate(_loops):
        if is_it(other):
            del _loops[i:]
            step.surround(_loops[-1][1] if _loops else None)
            return


def trained() -> bool:
    """An update was made outside any step: what fed it is split from now on. Whether anything was found to be split."""
    _training.update(_fresh)
    _fresh.clear()
    return bool(_training)


def check_loss(current) -> None:
    """Say what is not certain where the loss of an eager step was not computed by a loss of Keras'."""
    if not current.valued:
        warn(
            "the loss of a loop that runs eagerly is computed by hand: it is taken for a mean over rows, and its value "
            "is that of each rank's rows. A tf.function around the step is tried on the first batch and is exact"
        )
