"""usage: python train.py HOW: small scripts that matexrun must refuse, or must not mind."""

import sys

import keras
import numpy as np
import tensorflow as tf

X = np.linspace(-1, 1, 24, dtype="float32").reshape(8, 3)
Y = X.sum(1, keepdims=True)


def model():
    keras.utils.set_random_seed(1)
    built = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    built.compile("sgd", "mse")
    return built


def strategy():
    kind = getattr(tf.distribute, "Mirrored" + "Strategy")  # not to be found by reading
    with kind().scope():
        model().fit(X, Y, verbose=0)


def update_by_hand():
    weights = tf.Variable(tf.zeros((3, 1)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((X @ weights - Y) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))


def own_mpi():
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    for number in range(20):  # unanswered messages of the script's own, while matexrun communicates
        world.isend(number, (world.rank + 1) % world.size, tag=number)
    model().fit(X, Y, batch_size=3, verbose=0)
    numbers = [world.recv(source=(world.rank - 1) % world.size, tag=number) for number in range(20)]
    assert numbers == list(range(20))
    assert world.allreduce(1) == world.size


def without_training():
    print("nothing trained")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done")
