"""A plain Keras layer that notes which rows a model was really called with."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("tests")
class Rows(keras.layers.Layer):
    """Takes the last column, an id, off its input [rows, features + 1] and notes what came, call by call.

    One line a call: rows, sum of ids, sum of squared ids. Calls with training=True have a list of their own, for they
    may alternate with validation. At most `calls` of each. The lists are no weights of the layer, so that nothing
    restores, saves or synchronises them.
    """

    def __init__(self, calls=128, dtype="float32", **kwargs):
        super().__init__(dtype=dtype, **kwargs)  # under any policy: ids would not survive float16
        self.calls = calls

    def build(self, input_shape):
        self.lines = {mode: tf.Variable(tf.zeros((self.calls, 3), tf.int64)) for mode in ("train", "infer")}
        self.used = {mode: tf.Variable(0, dtype=tf.int64) for mode in ("train", "infer")}

    def call(self, inputs, training=False):
        ids, passed_on = self.split(inputs)
        if not training and not tf.inside_function():
            return passed_on  # somebody tries the model; evaluate and predict are functions
        mode = "train" if training else "infer"
        line = tf.stack([tf.reduce_sum(tf.ones_like(ids)), tf.reduce_sum(ids), tf.reduce_sum(ids * ids)])
        self.lines[mode].assign(tf.tensor_scatter_nd_update(self.lines[mode], [[self.used[mode]]], [line]))
        self.used[mode].assign_add(1)
        return passed_on

    def split(self, inputs):
        """ids int64 [rows], and what the next layer gets."""
        return tf.cast(tf.round(inputs[:, -1]), tf.int64), inputs[:, :-1]

    def compute_output_spec(self, inputs, training=False):
        return keras.KerasTensor((*inputs.shape[:-1], inputs.shape[-1] - 1), inputs.dtype)

    def take(self):
        """The lines so far as {"train": [[rows, ids, squares], ...], "infer": [...]}, and start afresh."""
        taken = {}
        for mode, used in self.used.items():
            taken[mode] = self.lines[mode].numpy()[: int(used)].tolist()
            used.assign(0)
        return taken
