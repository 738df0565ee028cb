"""tf.compat.v1: graphs that are built first, and run by Sessions.

graphs      what we know about a graph, and walks over it
groups      tensors combined between the ranks inside a run
gradients   combined where they are taken
terms       losses as sums of terms
writes      variables and summaries hold values of the whole data
iterators   elements of tf.data, sliced in the graph
feeds       batches that are fed, sliced before the run
noise       random numbers of rows
plans       what one call of Session.run does
probe       do slices make up the batch, and how?
results     fetches of training runs
variables   the same start
session     Session.run, which brings all of it together
files       written once
export      graphs that leave the process
"""

from matexrun.inject.v1 import export, feeds, files, gradients, iterators, noise, session, writes


def patch() -> None:
    """Apply every patch once; graphs of tf.function and Keras 3 are left alone."""
    for subject in (gradients, writes, iterators, feeds, noise, session, files, export):
        subject.patch()
