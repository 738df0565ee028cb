"""A plain Keras layer that notes which rows a model was really called with."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("tests")
class Rows(keras.layers.Layer):
    """Takes the last column, an id, off its input [rows, features + 1] and notes what came, call by call.

    One line a call: rows, sum of ids, sum of squared ids (int32; ids up to 1,000 and 1,000 rows are exact). Calls with
    training=True have a list of their own, for they may alternate with validation. At most `calls` of each.
    """

    def __init__(self, calls=128, dtype="float32", **kwargs):
        super().__init__(dtype=dtype, **kwargs)  # under any policy: ids would not survive float16
        self.calls = calls

    def build(self, input_shape):
        self.lines = {mode: self._integers((self.calls, 3), f"{mode}_lines") for mode in ("train", "infer")}
        self.used = {mode: self._integers((), f"{mode}_used") for mode in ("train", "infer")}

    def _integers(self, shape, name):
        return self.add_weight(shape=shape, dtype="int32", initializer="zeros", trainable=False, name=name)

    def call(self, inputs, training=False):
        mode = "train" if training else "infer"
        ids, passed_on = self.split(inputs)
        line = ops.stack([ops.sum(ops.ones_like(ids)), ops.sum(ids), ops.sum(ids * ids)])
        at = ops.reshape(ops.convert_to_tensor(self.used[mode]), (1, 1))
        self.lines[mode].assign(ops.scatter_update(self.lines[mode], at, line[None]))
        self.used[mode].assign(self.used[mode] + 1)
        return passed_on

    def split(self, inputs):
        """ids int32 [rows], and what the next layer gets."""
        return ops.cast(ops.round(inputs[:, -1]), "int32"), inputs[:, :-1]

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], input_shape[-1] - 1)

    def take(self):
        """The lines so far as {"train": [[rows, ids, squares], ...], "infer": [...]}, and start afresh."""
        taken = {}
        for mode, used in self.used.items():
            taken[mode] = ops.convert_to_numpy(self.lines[mode])[: int(used)].tolist()
            used.assign(0)
        return taken
