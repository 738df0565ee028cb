"""Keras 3: everything that makes `fit`, `evaluate`, `predict` and `*_on_batch` of N ranks behave as one process.

data        each rank gets its slice of every batch, with the numbers of rows (n_r, n)
trainer     the step sees the slice; before the first one the model is built, synchronised and probed
optimizer   gradients are combined where they are applied
per_rank    larger batches (--batch per-rank); learning_rate scales the rate to them
losses      divisors that belong to the whole batch
metrics     states that are the whole data's on every rank
batchnorm   statistics of the whole batch (--sync-batchnorm)
probe       user-written losses and metrics that slices cannot make up
state       same start, averaged moving statistics, divergence
callbacks   stop signals agreed by all ranks, one progress bar
writers     files written once
"""

from matexrun.inject import lifecycle, randomness
from matexrun.inject.keras3 import (
    batchnorm,
    callbacks,
    data,
    learning_rate,
    losses,
    metrics,
    optimizer,
    per_rank,
    trainer,
    writers,
)


def patch() -> None:
    """Apply every patch once. Raises PatchError where Keras is not as expected."""
    randomness.patch_keras(lifecycle.rank())
    subjects = (data, losses, metrics, batchnorm, optimizer, learning_rate, trainer, per_rank, callbacks, writers)
    for subject in subjects:
        subject.patch()
