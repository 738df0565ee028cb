"""Losses whose divisor belongs to the whole batch.

Gradients are combined as sum(n_r/n * g_r), which is right for every loss L_r of a slice with sum(n_r/n * L_r) = L. A
mean over the rows is such a loss as it is. Made so here: reduction "sum", and means that are divided by the number of
valid (unmasked) entries or by the sum of the sample weights, which are the whole batch's (one scalar allreduce).
"""

import functools

import tensorflow as tf

from matexrun.collectives import ops
from matexrun.errors import InexactError
from matexrun.inject import patching, step


def patch() -> None:
    """Patch `reduce_weighted_values` in keras.src.losses.loss, which Loss.__call__ looks up there."""
    from keras.src.losses import loss as module

    original = module.reduce_weighted_values
    patching.check_signature(original, ("values", "sample_weight", "mask", "reduction", "dtype"))

    @functools.wraps(original)
    def reduce_weighted_values(values, sample_weight=None, mask=None, reduction="sum_over_batch_size", dtype=None):
        loss = original(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
        current = step.current()
        if current is None or (current.by_hand and reduction in (None, "none")) or not current.is_on([values]):
            return loss
        loss = of_slice(loss, values, sample_weight, mask, reduction, current)
        return of_batch(loss, current) if current.drawn else loss

    def of_slice(loss, values, sample_weight, mask, reduction, current):
        """A loss L_r with sum(n_r/n * L_r) = L."""
        if reduction in (None, "none"):
            raise InexactError(
                "a loss with reduction=None has no value that slices of a batch could be combined to; "
                'use reduction="sum", which gives the same gradients'
            )
        values = tf.convert_to_tensor(values)
        if values.shape.rank == 0:
            if sample_weight is not None:
                raise InexactError(
                    "a loss function that returns one number for the whole batch cannot be weighted by sample: "
                    "return one value per sample (reduce over axis=-1 instead of all axes)"
                )
            return loss
        if reduction == "sum":
            return loss * tf.cast(current.scale, loss.dtype)
        if reduction == "mean_with_sample_weight" and (sample_weight is not None or mask is not None):
            weight = module.apply_mask(_cast(sample_weight, loss), _cast(mask, loss), loss.dtype, reduction)
            return _share_divisor(loss, tf.reduce_sum(tf.cast(weight, loss.dtype)), current)
        if mask is not None:
            return _share_divisor(loss, tf.reduce_sum(tf.cast(mask, loss.dtype)), current)
        return loss

    module.reduce_weighted_values = reduce_weighted_values


def of_batch(loss, current):
    """The same with the value of the whole batch, as the script will show it; the gradient stays the slice's."""

    @tf.custom_gradient
    def value(local):
        current.valued = True
        (whole,) = ops.allreduce([local], current.order, factor=current.share)
        return whole, lambda upstream: upstream

    return value(loss)


def _cast(tensor, like):
    return None if tensor is None else tf.cast(tensor, like.dtype)


def _share_divisor(loss, divisor, current):
    """A loss that was divided by the slice's `divisor` -> one divided by the batch's, and weighted to combine."""
    divisor = tf.stop_gradient(tf.where(current.counts, tf.cast(divisor, tf.float32), 0.0))
    (whole,) = ops.allreduce([divisor], current.order)
    return loss * tf.cast(current.scale * tf.math.divide_no_nan(divisor, whole), loss.dtype)
