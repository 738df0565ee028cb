"""Training loops that users write themselves: what a tf.function trains on is split, everything outside it stays whole.

functions   the boundary: arguments in slices, results of the whole batch
drawn       functions that take batches from a dataset by themselves
batch       which arguments are the batch
trial       the first batch, whole and in slices: do the slices make up the whole?
parts       what a function returns, and the variables it changes, from slices to the whole
steps       a train_step of the user's in Model.fit
counts      the numbers of rows that a traced function reads

The script's data, its loop and what it prints are not touched, so they are the same on every rank.
"""

from matexrun.inject.loops import drawn, functions


def patch() -> None:
    """Apply every patch once. Raises PatchError where TensorFlow is not as expected."""
    drawn.patch()
    functions.patch()
