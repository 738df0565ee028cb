"""tf_keras (Keras 2): what `keras3` does for Keras 3, for `import tf_keras` and TF_USE_LEGACY_KERAS=1.

data        each rank gets its slice of every batch, with the numbers of rows (n_r, n)
trainer     the step sees the slice; before the first one the model is built, synchronised and probed
optimizer   gradients are combined where they are applied; current and legacy optimizers
losses      divisors that belong to the whole batch
metrics     states that are the whole data's on every rank
batchnorm   statistics of the whole batch (--sync-batchnorm)
probe       user-written losses and metrics that slices cannot make up
state       same start, averaged moving statistics, divergence
randomness  dropout differs between ranks
callbacks   stop signals agreed by all ranks, one progress bar
writers     files written once

tf_keras runs its steps under AutoGraph, and keeps its own names and rules: hence files of its own. What is the same for
both is imported from `keras3`.
"""

from matexrun.inject import per_rank
from matexrun.inject.tf_keras import (
    batchnorm,
    callbacks,
    data,
    losses,
    metrics,
    optimizer,
    randomness,
    trainer,
    writers,
)


def patch() -> None:
    """Apply every patch once. Raises PatchError where tf_keras is not as expected; tried on tf_keras 2.18 and 2.21."""
    per_rank.refuse("tf_keras")
    for subject in (randomness, data, losses, metrics, batchnorm, optimizer, trainer, callbacks, writers):
        subject.patch()
