"""Scripts of TensorFlow 1 whose results slices of a batch cannot give, or whose processes do not start alike."""

import os

import numpy as np
import tensorflow.compat.v1 as tf
from v1_examples import adam, batches, example, main, mlp, placeholders, table, weights

tf.disable_v2_behavior()
X, Y = table()


def first_error(operation, feed, *fetches):
    """The error of the first training run, as text; None without one."""
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        try:
            session.run([operation, *fetches], feed)
        except Exception as error:
            return f"{type(error).__name__}: {error}"


@example
def rows_compared():
    """A loss that compares the rows of a batch with each other."""
    x, _ = placeholders()
    out = mlp(x, outputs=3)
    loss = tf.reduce_mean(tf.matmul(out, out, transpose_b=True))
    return first_error(adam().minimize(loss), {x: X[:7]})


@example
def fetched_beside():
    """A number, fetched in the training run, that is no mean of parts."""
    x, y = placeholders()
    out = mlp(x)
    loss = tf.reduce_mean(tf.square(out - y))
    return first_error(adam().minimize(loss), {x: X[:7], y: Y[:7]}, tf.sqrt(loss) * tf.reduce_sum(out))


@example
def in_parts():
    """Session.partial_run."""
    x, y = placeholders()
    loss = tf.reduce_mean(tf.square(mlp(x) - y))
    operation = adam().minimize(loss)
    with tf.Session() as session:
        try:
            session.partial_run_setup([loss, operation], [x, y])
        except Exception as error:
            return f"{type(error).__name__}: {error}"


@example
def own_start():
    """Each process chooses its own weights; they are [before, after] training."""
    x, y = placeholders()
    tf.set_random_seed(int.from_bytes(os.urandom(3), "little"))
    loss = tf.reduce_mean(tf.square(mlp(x) - y))
    operation = adam().minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = weights(session)
        for a, b in batches(X, Y):
            session.run(operation, {x: a, y: b})
        return [before, weights(session)]


@example
def own_shape():
    """A variable has another shape in each process."""
    x = tf.placeholder(tf.float32, [None])
    size = os.getpid() % 1000 + 1
    v = tf.get_variable("v", [size])
    loss = tf.reduce_mean(x) * tf.reduce_sum(v)
    return first_error(adam().minimize(loss), {x: np.ones(7)})


if __name__ == "__main__":
    main()
