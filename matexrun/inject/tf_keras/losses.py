"""Losses of tf_keras whose divisor belongs to the whole batch; the rule is that of `keras3.losses`."""

import functools

import tensorflow as tf

from matexrun.collectives import ops
from matexrun.errors import InexactError
from matexrun.inject import patching, step
from matexrun.inject.keras3.losses import of_batch
from matexrun.inject.tf_keras.metrics import updates

_MEANS = ("auto", "sum_over_batch_size")


def patch() -> None:
    """Patch the two functions in which Loss.__call__ reduces and masks, and LossesContainer, which is
    compile(loss=...)."""
    from tf_keras.src.engine.compile_utils import LossesContainer
    from tf_keras.src.utils import losses_utils

    _patch_reduction(losses_utils)
    _patch_mask(losses_utils)

    @patching.method(LossesContainer, "__call__", ("y_true", "y_pred"))
    def compiled_loss(original, self, y_true, y_pred, *args, **kwargs):
        current = step.current()
        if current is None:
            return original(self, y_true, y_pred, *args, **kwargs)
        with updates.together(current):
            return original(self, y_true, y_pred, *args, **kwargs)


def check(model) -> None:
    """Raise InexactError where compile() was given a loss without a reduction."""
    for loss in tf.nest.flatten(model.compiled_loss and model.compiled_loss._losses):
        if getattr(loss, "reduction", None) == "none":
            raise InexactError(
                'compile() was given a loss with the reduction "none", which has no value that slices of a batch could '
                'be combined to; use "sum", which gives the same gradients'
            )


def _patch_reduction(losses_utils) -> None:
    original = losses_utils.compute_weighted_loss
    patching.check_signature(original, ("losses", "sample_weight", "reduction", "name"))

    @functools.wraps(original)
    def compute_weighted_loss(losses, sample_weight=None, reduction="sum_over_batch_size", name=None):
        loss = original(losses, sample_weight, reduction, name)
        current = step.current()
        if current is None or reduction == "none" or not current.is_on([losses]):
            return loss  # what a step of the user's makes of values per row is its own business
        loss = of_slice(loss, losses, sample_weight, reduction, current)
        return of_batch(loss, current) if current.drawn else loss

    def of_slice(loss, losses, sample_weight, reduction, current):
        """A loss L_r with sum(n_r/n * L_r) = L."""
        if losses.shape.rank == 0:
            if sample_weight is not None and tf.convert_to_tensor(sample_weight).shape.rank:
                raise InexactError(
                    "a loss function that returns one number for the whole batch cannot be weighted by sample: "
                    "return one value per sample (reduce over axis=-1 instead of all axes)"
                )
            return loss
        if reduction == "sum":
            return loss * tf.cast(current.scale, loss.dtype)
        if isinstance(losses, tf.RaggedTensor):  # rows have different numbers of values
            mine, whole = _whole(tf.size(losses), current)
            return loss * tf.cast(current.scale * tf.math.divide_no_nan(mine, whole), loss.dtype)
        return loss

    patching.everywhere(original, compute_weighted_loss, "tf_keras")


def _patch_mask(losses_utils) -> None:
    original = losses_utils.apply_valid_mask
    patching.check_signature(original, ("losses", "sw", "mask", "reduction"))

    @functools.wraps(original)
    def apply_valid_mask(losses, sw, mask, reduction):
        """A mean over what is valid: tf_keras weights each valid value by all/valid, which are the whole batch's."""
        current = step.current()
        if current is None or mask is None or reduction not in _MEANS or not current.is_on([mask]):
            return original(losses, sw, mask, reduction)
        mask = tf.cast(mask, losses.dtype)
        (_, total), (_, valid) = _whole(tf.size(mask), current), _whole(tf.reduce_sum(mask), current)
        return losses_utils.apply_mask(losses, sw, mask * tf.cast(total / valid, mask.dtype))

    patching.everywhere(original, apply_valid_mask, "tf_keras")


def _whole(count, current):
    """A number that belongs to this rank's slice, and its sum over the ranks (float32 scalars)."""
    mine = tf.stop_gradient(tf.where(current.counts, tf.cast(count, tf.float32), 0.0))
    (whole,) = ops.allreduce([mine], current.order)
    return mine, whole
