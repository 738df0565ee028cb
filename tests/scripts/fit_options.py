"""What model.fit and model.compile may be told besides the data."""

import keras
import numpy as np
import tensorflow as tf
from cases import BATCH, FEATURES, N, case, fit, labels, main, mlp, outcome, table
from rows import Rows


def compiled(jit, **options):
    model = mlp()
    model.compile("sgd", "mse", metrics=["mae"], **{"jit_compile": jit, **options})
    return model


@case
def validation_data(jit):
    return fit(compiled(jit), *table(), batch_size=BATCH, validation_data=table(20, seed=8), validation_batch_size=3)


@case
def validation_freq_and_steps(jit):
    held_out = tf.data.Dataset.from_tensor_slices(table(20, seed=8)).batch(3)
    options = {"validation_data": held_out, "validation_steps": 4, "validation_freq": 2}
    return fit(compiled(jit), *table(), batch_size=BATCH, epochs=4, **options)


def classifier(jit):
    model = mlp(3, "softmax")
    model.compile(
        "sgd", "sparse_categorical_crossentropy", metrics=["accuracy"], weighted_metrics=["accuracy"], jit_compile=jit
    )
    return model


@case
def class_weight(jit):
    return fit(classifier(jit), *labels(), batch_size=BATCH, class_weight={0: 0.4, 1: 3.0, 2: 1.0})


@case
def sample_weights_that_are_zero_on_a_slice(jit):
    weights = np.where(np.arange(N) % BATCH < 4, 0.0, 1.0)
    return fit(classifier(jit), *labels(), batch_size=BATCH, sample_weight=weights, shuffle=False)


@case
def steps_per_execution(jit):
    return fit(compiled(jit, steps_per_execution=3), *table(), batch_size=BATCH)


@case
def run_eagerly(jit):
    return fit(compiled(False, run_eagerly=True), *table(), batch_size=BATCH)


def weights(model):
    return [weight.numpy().tolist() for weight in model.trainable_variables]


class OwnStep(keras.Model):
    """The training step of Keras's guide: its own loss tracker, metrics updated by hand."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="tanh")
        self.head = keras.layers.Dense(1)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")

    def call(self, x, training=False):
        return self.head(self.hidden(x[:, :-1]))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = keras.ops.mean(keras.losses.mean_squared_error(y, predicted))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        self.mae.update_state(y, predicted)
        return {"loss": self.loss_tracker.result(), "mae": self.mae.result()}

    def test_step(self, data):
        x, y = data
        predicted = self(x, training=False)
        self.loss_tracker.update_state(keras.ops.mean(keras.losses.mean_squared_error(y, predicted)))
        self.mae.update_state(y, predicted)
        return {"loss": self.loss_tracker.result(), "mae": self.mae.result()}

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae]


@case
def custom_train_step(jit):
    model = OwnStep()
    model.compile(optimizer="sgd", jit_compile=jit)
    fitted = model.fit(*table(), batch_size=BATCH, epochs=2, validation_data=table(20, seed=8), verbose=0)
    return {"history": fitted.history, "weights": weights(model)}


LINES = []


def note(ids):
    """As `Rows` does, which a training step of one's own may not: it changes variables by hand."""
    ids = ids.astype("int64")
    LINES.append([len(ids), int(ids.sum()), int((ids * ids).sum())])


class OwnStepWithCompiledLoss(keras.Model):
    """The shorter training step of Keras's guide: compute_loss and compiled metrics."""

    def train_step(self, data):
        x, y, sample_weight = data
        tf.numpy_function(note, [tf.round(x[:, -1])], [])
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predicted, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


@case
def custom_train_step_with_compute_loss(jit):
    inputs = keras.Input((FEATURES + 1,))
    hidden = keras.layers.Dense(8, activation="tanh")(inputs[:, :-1])
    model = OwnStepWithCompiledLoss(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse", metrics=["mae"], jit_compile=False)
    options = {"batch_size": BATCH, "sample_weight": np.linspace(0.5, 2, N), "epochs": 2, "verbose": 0}
    fitted = model.fit(*table(), **options)
    return {"history": fitted.history, "weights": weights(model), "rows": {"train": LINES[-3:]}}


@case
def subclassed_model_built_by_fit(jit):
    """No input shape before the first batch: the weights are made inside fit."""

    class Late(keras.Model):
        def __init__(self):
            super().__init__()
            self.seen = Rows(name="rows")
            self.head = keras.layers.Dense(1)

        def call(self, x, training=False):
            return self.head(self.seen(x, training=training))

    model = Late()
    model.compile("sgd", "mse", jit_compile=jit)
    return fit(model, *table(), batch_size=BATCH)


class Counts(keras.layers.Layer):
    """Counts its calls in training, in a scalar integer."""

    def build(self, input_shape):
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")

    def call(self, inputs, training=False):
        if training:
            self.calls.assign(self.calls + 1)
        return inputs


@case
def layer_with_a_counter(jit):
    """The last batch has fewer rows than there are ranks, and every fit and evaluate starts from rank 0's state."""
    model = mlp()
    model.add(Counts())
    model.compile("sgd", "mse", jit_compile=jit)
    trained = [fit(model, *table(), batch_size=BATCH, validation_split=0.28) for _ in range(2)]
    model.evaluate(*table(), verbose=0)
    return outcome(model, trained=trained, calls=int(model.layers[-1].calls.value))


@case
def batch_normalization_stays_finite(jit):
    """Its statistics are of the slice, so that values differ; but a slice without rows must not make them NaN."""
    model = keras.Sequential(
        [
            keras.Input((FEATURES + 1,)),
            Rows(name="rows"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse", jit_compile=jit)
    model.fit(*table(), batch_size=BATCH, epochs=2, verbose=0)
    loss = model.evaluate(*table(), batch_size=BATCH, verbose=0)
    return {
        "rows": model.get_layer("rows").take(),
        "finite": bool(np.isfinite(model.get_weights()[0]).all() and loss < 9),
    }


if __name__ == "__main__":
    main()
