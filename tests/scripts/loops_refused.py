"""Steps written by hand that slices of a batch cannot make up."""

import keras
import tensorflow as tf
from cases import BATCH, case, main, table


def trained(loss_fn, fixed=None):
    """One epoch of a step with this loss(y, y_pred)."""
    x, y = table()
    x = x[:, :5]
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)

    @tf.function
    def train(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    for xs, ys in tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True):
        train(xs, ys)
    return {"weights": [v.numpy().tolist() for v in model.trainable_variables]}


@case
def dice(jit):
    """A quotient of sums."""
    return trained(lambda y, p: 1.0 - tf.reduce_sum(y * p) / (tf.reduce_sum(y * y) + tf.reduce_sum(p * p)))


@case
def contrastive(jit):
    """Rows are compared with each other."""
    return trained(lambda y, p: tf.reduce_mean(tf.square(p - tf.transpose(p) - y + tf.transpose(y))))


@case
def fixed_number_of_rows(jit):
    """The batch size is written into the step."""
    return trained(lambda y, p: tf.reduce_mean(tf.square(p - y) * tf.linspace(0.0, 1.0, BATCH)[:, None]))


@case
def largest_of_a_batch(jit):
    """The loss is a mean, but the step returns a maximum."""
    x, y = table()
    w = tf.Variable(tf.zeros([6, 1]))

    @tf.function
    def train(x, y):
        with tf.GradientTape() as tape:
            errors = tf.square(x @ w - y)
            loss = tf.reduce_mean(errors)
        w.assign_sub(1e-4 * tape.gradient(loss, w))
        return tf.reduce_max(errors)

    return {"weights": float(train(x, y))}


class ByHand(keras.Model):
    """A train_step whose loss is written by hand."""

    def __init__(self, loss_fn):
        super().__init__()
        self.dense, self.loss_fn = keras.layers.Dense(1), loss_fn

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_fn(y, self(x))
        gradients = tape.gradient(loss, self.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


@case
def train_step_of_a_model(jit):
    model = ByHand(lambda y, p: tf.reduce_sum(tf.square(y - p)) / tf.reduce_sum(tf.square(y)))
    model.compile(keras.optimizers.SGD(0.01))
    x, y = table()
    return {"history": model.fit(x[:, :5], y, batch_size=BATCH, verbose=0).history}


if __name__ == "__main__":
    main()
