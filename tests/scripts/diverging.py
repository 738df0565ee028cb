"""usage: python diverging.py OUT fit|loop|same|nothing: each process changes a weight in its own way, or not.

fit, loop: after the third update a bias gets something that only this process has.  same: a train_step that trains on a
constant instead of its batch.  nothing: plain training.
"""

import os
import sys

import keras
import numpy as np
import tensorflow as tf

x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
y = x.sum(1, keepdims=True)


def build(kind=keras.Model):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(3, activation="tanh", name="hidden")(inputs)
    model = kind(inputs, keras.layers.Dense(1, name="last")(hidden))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def push(model):
    model.get_layer("hidden").bias.assign_add([0.0, 0.0, os.getpid() * 1e-6])


def loop(model):
    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        model.optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    for update in range(6):
        train_step(tf.constant(x[10 * update :][:10]), tf.constant(y[10 * update :][:10]))
        if update == 2:
            push(model)


class OnConstant(keras.Model):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(tf.constant(x[:10]), training=True) - y[:10]))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


if __name__ == "__main__":
    keras.utils.set_random_seed(1)
    if sys.argv[2] == "loop":
        loop(build())
    elif sys.argv[2] == "fit":
        model = build()
        once = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batch == 2 and push(model))
        model.fit(x, y, batch_size=10, epochs=2, verbose=0, callbacks=[once])
    elif sys.argv[2] == "same":
        build(OnConstant).fit(x, y, batch_size=10, epochs=1, verbose=0)
    else:
        build().fit(x, y, batch_size=10, epochs=1, verbose=0)
    print("trained")
