"""BatchNormalization with the statistics of the whole batch (--sync-batchnorm), for Keras 3 and tf_keras.

Mean and variance depend on the rows of all ranks, and so do the gradients with respect to a rank's rows: both ways pass
through one collective of the step.
"""

import functools

import tensorflow as tf

from matexrun.collectives import ops
from matexrun.errors import InexactError
from matexrun.inject import lifecycle, step
from matexrun.inject.tensorflow import warn


class _Used:
    yet = False  # whether statistics of whole batches were asked for in this process


@functools.cache
def expect() -> None:
    """Have the script's end say so where --sync-batchnorm was given and came to nothing."""
    if lifecycle.job().sync_batchnorm:
        lifecycle.at_end(_check_used)


def _check_used() -> None:
    if not _Used.yet:
        warn(
            "--sync-batchnorm had no effect: no BatchNormalization of Keras or tf_keras was trained in a step that is "
            "split (layers of tf.compat.v1, and of the script's own, are not changed)"
        )


def synchronised(inputs) -> bool:
    """Whether `moments` is to take the place of a layer's own mean and variance of `inputs`: in a training step, with
    --sync-batchnorm. Where it is not, but the ranks normalise with slices, the user is told so once."""
    current = step.current()
    if current is None or not current.training or not current.is_on([inputs]):
        return False
    if not lifecycle.job().sync_batchnorm:
        warn(
            "BatchNormalization: each rank normalises its slice of a batch with the slice's own mean and variance, so "
            "the result differs from that of one process; --sync-batchnorm takes those of the whole batch"
        )
    return lifecycle.job().sync_batchnorm


def moments(inputs, axes, mask=None, keepdims: bool = False):
    """The first two of `statistics`."""
    return statistics(inputs, axes, mask, keepdims)[:2]


def statistics(inputs, axes, mask=None, keepdims: bool = False):
    """(mean, variance, number of entries) of the whole batch, the same on all ranks, in float32 (float64 for such
    inputs).

    inputs: this rank's rows, [rows, ...].  axes: the dimensions to reduce, rows among them.  mask: True or 1 where an
    entry counts, broadcastable to `inputs`. Where no entry counts, mean and variance are 0. Collective.
    """
    _Used.yet = True
    current = step.current()
    inputs = tf.convert_to_tensor(inputs)
    if inputs.dtype != tf.float64:
        inputs = tf.cast(inputs, tf.float32)
    weights = None
    if mask is not None:
        weights = tf.broadcast_to(tf.cast(mask, inputs.dtype), tf.shape(inputs))
        inputs = tf.where(weights > 0, inputs, 0)  # what is masked may be NaN
    counts = tf.cast(current.counts, inputs.dtype)

    @tf.custom_gradient
    def of_batch(inputs):
        total, mean, variance = _put_together(_of_slice(inputs, axes, weights), current)

        def gradient(*signals_and_total):
            signals = signals_and_total[:2]  # the number does not depend on the inputs
            # A rank that only borrowed a row has no part in mean and variance.
            to_mean, to_variance = (
                counts * tf.math.divide_no_nan(signal, total) for signal in _back_from_all(signals, current)
            )
            result = to_mean + 2.0 * to_variance * (inputs - mean)
            return result if weights is None else result * weights

        return (mean, variance, total), gradient

    found = of_batch(inputs)
    return found if keepdims else tuple(tf.squeeze(each, axes) for each in found)


def _of_slice(inputs, axes, weights):
    """[3, ...]: number of entries, their mean, and the sum of squared distances from it, with the axes kept."""
    if weights is None:
        total = tf.reduce_prod(tf.cast(tf.gather(tf.shape(inputs), axes), inputs.dtype))
        weights = 1.0
    else:
        total = tf.reduce_sum(weights, axes, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(weights * inputs, axes, keepdims=True), total)
    squares = tf.reduce_sum(weights * tf.square(inputs - mean), axes, keepdims=True)
    return tf.stack([tf.broadcast_to(total, mean.shape), mean, squares])


def _put_together(numbers, current):
    """(number of entries, mean, variance) of the whole batch from `_of_slice` of each rank.

    By Chan's formula, for which every rank has a place of its own in one sum: a difference of two large sums,
    E[x^2] - E[x]^2, would lose the digits of a small variance.
    """
    world = lifecycle.world()
    numbers = tf.where(current.counts, numbers, 0)
    places = [[world.rank, world.size - 1 - world.rank], *([0, 0] for _ in numbers.shape)]
    (of_ranks,) = ops.allreduce([tf.pad(numbers[tf.newaxis], places)], current.order, kind="batch statistics")
    totals, means, squares = tf.unstack(of_ranks, axis=1)
    total = tf.reduce_sum(totals, 0)
    mean = tf.math.divide_no_nan(tf.reduce_sum(totals * means, 0), total)
    squares = tf.reduce_sum(squares + totals * tf.square(means - mean), 0)
    return total, mean, tf.math.divide_no_nan(squares, total)


def _back_from_all(signals, current) -> list:
    """What reaches the loss through mean and variance, as a rank's own gradient must have it.

    Rank q's tape has the gradient of its own loss L_q, and the batch's loss is sum(w_q * L_q). Through mean and
    variance a rank's rows reach the losses of all ranks, so it gets sum(w_q * signal_q); divided by w_r, with which its
    gradients will be multiplied when they are combined. A loss that was multiplied by w_q already, for a
    LossScaleOptimizer, needs neither.
    """

    @tf.custom_gradient
    def through(*signals):
        def again(*_):
            raise InexactError(
                "a gradient of a gradient (a penalty on gradients, say) passes through BatchNormalization with "
                "--sync-batchnorm, which cannot be combined between the ranks: leave the option out, or use "
                "LayerNormalization there"
            )

        if current.weighted:
            return tuple(ops.allreduce(signals, current.order, kind="batch statistics")), again
        weight = current.weight
        sums = ops.allreduce(signals, current.order, factor=weight, kind="batch statistics")
        return tuple(tf.math.divide_no_nan(each, tf.cast(weight, each.dtype)) for each in sums), again

    return through(*signals)
