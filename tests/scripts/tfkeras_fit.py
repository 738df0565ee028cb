"""fit, evaluate, predict and the methods for one batch, as people write them with tf_keras."""

import numpy as np
import tensorflow as tf
import tf_keras as keras
from tfkeras_cases import BATCH, FEATURES, N, Rows, adam, case, fit, labels, main, mlp, outcome, table

legacy = keras.optimizers.legacy


@case
def arrays_with_metrics(jit):
    """Validation, weights, and metrics of Keras' own, one of which makes its state when it first sees data."""
    x, y = table()
    y = (y > 0).astype("float32")
    model = mlp(1, "sigmoid", kernel_regularizer="l2", activity_regularizer=keras.regularizers.L1(0.01))
    metrics = [keras.metrics.AUC(num_thresholds=50, name="auc"), keras.metrics.Precision(name="precision"), "accuracy"]
    metrics += [
        keras.metrics.F1Score("macro", threshold=0.5, name="f1"),
        keras.metrics.RootMeanSquaredError(name="rmse"),
    ]
    model.compile(adam(), "binary_crossentropy", metrics=metrics, weighted_metrics=["mae"], jit_compile=jit)
    weights = np.linspace(0.1, 3, N) ** 2
    results = fit(model, x, y, batch_size=BATCH, sample_weight=weights, validation_split=0.3)
    return {**results, "evaluated": model.evaluate(x, y, batch_size=11, sample_weight=weights, verbose=0)}


@case
def dataset_in_executions_of_3_steps(jit):
    """Class weights, and a legacy optimizer that clips by the norm of all gradients."""
    model = mlp(3, "softmax")
    optimizer = legacy.SGD(0.1, momentum=0.9, decay=0.01, global_clipnorm=0.3)
    loss = "sparse_categorical_crossentropy"
    model.compile(optimizer, loss, metrics=["accuracy"], steps_per_execution=3, jit_compile=jit)
    data = tf.data.Dataset.from_tensor_slices(labels()).shuffle(50, seed=5).batch(BATCH).prefetch(2)
    results = fit(model, data, class_weight={0: 0.4, 1: 3.0, 2: 1.0}, validation_data=data.take(2))
    predicted = model.predict(labels()[0], batch_size=BATCH, verbose=0)
    return {**results, "predicted": predicted.tolist()}


@case
def generator_with_weights_and_a_sum(jit):
    x, y = table()

    def endless():
        while True:
            for start in range(0, N, BATCH):
                rows = slice(start, start + BATCH)
                yield x[rows], y[rows], np.linspace(0.5, 2, N)[rows]

    model = mlp()
    loss = keras.losses.Huber(reduction=keras.losses.Reduction.SUM)
    model.compile(legacy.Adam(0.01, epsilon=1e-3, clipnorm=0.5), loss, metrics=["mae"], jit_compile=jit)
    return fit(model, endless(), steps_per_epoch=8)


class Batches(keras.utils.Sequence):
    """Two inputs and two targets by batch."""

    def __len__(self):
        return -(-N // BATCH)

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        (x, value), kind = table(), labels()[1]
        return {"a": x[rows], "b": x[rows, :2] ** 2}, {"value": value[rows], "kind": kind[rows]}


@case
def sequence_with_workers_and_two_outputs(jit):
    inputs = {"a": keras.Input((FEATURES + 1,), name="a"), "b": keras.Input((2,), name="b")}
    hidden = keras.layers.Dense(8, activation="tanh")(Rows(name="rows")(inputs["a"]))
    hidden = keras.layers.Concatenate()([hidden, inputs["b"]])
    outputs = {
        "value": keras.layers.Dense(1, name="value")(hidden),
        "kind": keras.layers.Dense(3, name="kind")(hidden),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.RMSprop(0.005, epsilon=1e-3),
        loss={"value": "mae", "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        loss_weights={"value": 0.3, "kind": 1.7},
        metrics={"value": ["mse"], "kind": ["accuracy"]},
        jit_compile=jit,
    )
    results = fit(model, Batches(), shuffle=False, workers=2)
    predicted = model.predict(Batches()[0][0], batch_size=3, verbose=0)
    return {**results, "predicted": {name: value.tolist() for name, value in predicted.items()}}


@case
def masked_sequences_with_sparse_gradients(jit):
    """A loss per time step: masked steps count nowhere, and slices hold different numbers of them."""
    rng = np.random.default_rng(11)
    tokens, lengths = rng.integers(1, 12, size=(N, 6)), rng.integers(1, 7, size=(N, 1))
    tokens[np.arange(6) >= lengths] = 0
    inputs = keras.Input((7,))
    embedded = keras.layers.Embedding(12, 4, mask_zero=True)(Rows(name="rows")(inputs))
    recurrent = keras.layers.LSTM(4, return_sequences=True)(embedded)
    model = keras.Model(inputs, keras.layers.TimeDistributed(keras.layers.Dense(3))(recurrent))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(adam(), loss, metrics=["accuracy"], weighted_metrics=["accuracy"], jit_compile=jit)
    x = np.column_stack([tokens, np.arange(1, N + 1)]).astype("float32")
    return fit(model, x, tokens % 3, batch_size=BATCH)


class LargestError(keras.metrics.Metric):
    """A maximum, whose states do not add up, with a branch that AutoGraph makes one of the graph's."""

    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_weight(name="value", initializer="zeros")

    def update_state(self, true, predicted, sample_weight=None):
        error = tf.reduce_max(tf.abs(tf.cast(true, "float32") - predicted))
        if error > self.largest:
            self.largest.assign(error)

    def result(self):
        return self.largest


class Energy(keras.metrics.Metric):
    """Sum of squares over a count, updated in a tf.function of its own."""

    def __init__(self):
        super().__init__(name="energy")
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    @tf.function
    def update_state(self, true, predicted, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(tf.square(predicted)))
        self.count.assign_add(tf.cast(tf.shape(predicted)[0], "float32"))

    def result(self):
        return self.total / (self.count + 1e-9)


@case
def own_loss_and_metrics(jit):
    def log_cosh_mean(true, predicted):
        return tf.reduce_mean(tf.math.log(tf.cosh(true - predicted)))

    def bias(true, predicted):
        return keras.backend.mean(predicted - true)

    def within(true, predicted):
        return tf.cast(tf.abs(predicted - true)[:, 0] < 0.5, "float32")

    model = mlp()
    metrics = [LargestError(), Energy(), bias, within]
    model.compile(adam(), log_cosh_mean, metrics=metrics, weighted_metrics=[], jit_compile=jit)
    return fit(model, *table(), batch_size=BATCH, validation_split=0.3)


class OwnStep(keras.Model):
    """The training step of Keras' guide under a decorator, with clipping and a branch between tape and optimizer."""

    def __init__(self):
        super().__init__()
        self.normal = keras.layers.BatchNormalization(center=False, scale=False)
        self.hidden = keras.layers.Dense(8, activation="tanh")
        self.head = keras.layers.Dense(1)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")

    def call(self, x, training=None):
        x = x[:, :FEATURES]
        self.normal(x, training=training)  # looks on: statistics of slices would make a difference
        return self.head(self.hidden(x))

    @tf.function
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = tf.reduce_mean(keras.losses.mean_squared_error(y, predicted))
        gradients = tape.gradient(loss, self.trainable_variables)
        norm = tf.linalg.global_norm(gradients)
        if norm > 0.2:
            gradients = [gradient * 0.2 / norm for gradient in gradients]
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.loss_tracker.update_state(loss)
        self.mae.update_state(y, predicted)
        return {"loss": self.loss_tracker.result(), "mae": self.mae.result(), "norm": norm, "raw": loss}

    def test_step(self, data):
        x, y = data
        predicted = self(x, training=False)
        self.loss_tracker.update_state(tf.reduce_mean(keras.losses.mean_squared_error(y, predicted)))
        self.mae.update_state(y, predicted)
        return {"loss": self.loss_tracker.result(), "mae": self.mae.result()}

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae]


@case
def own_train_step(jit):
    """Two datasets of other shapes, so that the step is traced twice."""
    model = OwnStep()
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), jit_compile=jit)
    options = {"epochs": 2, "verbose": 0, "validation_data": table(20, seed=8)}
    first = model.fit(*table(), batch_size=BATCH, **options).history
    fixed = tf.data.Dataset.from_tensor_slices(table(20)).batch(4, drop_remainder=True)
    second = model.fit(fixed, **options).history
    return {"first": first, "second": second, "weights": [w.numpy().tolist() for w in model.trainable_weights]}


class ScaledStep(keras.Sequential):
    """Loss scaling by hand, as the guide to mixed precision has it."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            scaled = self.optimizer.get_scaled_loss(loss)
        gradients = self.optimizer.get_unscaled_gradients(tape.gradient(scaled, self.trainable_variables))
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


@case
def mixed_float16(jit):
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        plain = mlp()
        plain.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], jit_compile=jit)
        by_hand = ScaledStep([keras.Input((FEATURES,)), keras.layers.Dense(1, dtype="float32")])
        by_hand.compile(legacy.SGD(0.1), "mse", jit_compile=jit)
        results, (x, y) = fit(plain, *table(), batch_size=BATCH), table()
        history = by_hand.fit(x[:, :FEATURES], y, batch_size=BATCH, verbose=0).history
        weights = [weight.numpy().tolist() for weight in by_hand.trainable_weights]
        scales = [float(model.optimizer.loss_scale) for model in (plain, by_hand)]
        return {"plain": results, "by hand": {"history": history, "weights": weights}, "scales": scales}
    finally:
        keras.mixed_precision.set_global_policy("float32")


@case
def loss_scale_that_overflows_on_one_rank(jit):
    """A large row in two of the batches, whose gradients, times the first scale, are too large for float32: their steps
    are skipped, on all ranks."""
    x, y = table()
    y[[0, BATCH + 5]] += 1e4
    optimizer = keras.mixed_precision.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), initial_scale=2.0**127
    )
    model = mlp()
    model.compile(optimizer, "mse", jit_compile=jit)
    return {**fit(model, x, y, batch_size=BATCH, shuffle=False), "scale": float(optimizer.loss_scale)}


@case
def eagerly_with_averaged_weights(jit):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.8)
    averaged = {"use_ema": True, "ema_overwrite_frequency": 4}
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.02, epsilon=1e-3, clipvalue=0.3, **averaged)
    model = mlp()
    model.compile(optimizer, "mse", metrics=["mae"], run_eagerly=True)
    return fit(model, *table(), batch_size=BATCH)


class Penalty(keras.layers.Layer):
    """Adds the mean square of its input to the loss, and a metric."""

    def call(self, inputs):
        self.add_loss(0.3 * tf.reduce_mean(tf.square(inputs)))
        self.add_metric(tf.reduce_mean(inputs), name="level")
        return inputs


class Late(keras.Model):
    """No input shape before the first batch: the weights are made inside fit."""

    def __init__(self):
        super().__init__()
        self.seen = Rows(name="rows")
        self.normal = keras.layers.BatchNormalization(momentum=0.5)
        self.head = keras.layers.Dense(1)
        self.penalty = Penalty()

    def call(self, x, training=None):
        # Statistics of slices would differ from the batch's, so BatchNormalization only looks on.
        self.normal(x, training=training)
        return self.penalty(self.head(self.seen(x, training=training)))


@case
def subclass_built_by_fit(jit):
    """The last batch has fewer rows than there are ranks; moving statistics are finite, and equal on all ranks."""
    model = Late()
    model.compile(adam(), "mse", jit_compile=jit)
    results = fit(model, *table(), batch_size=BATCH)
    moving = np.concatenate([np.asarray(v) for v in (model.normal.moving_mean, model.normal.moving_variance)])
    return {**results, "finite": bool(np.isfinite(moving).all() and np.abs(moving[:FEATURES]).max() < 9)}


@case
def methods_for_one_batch(jit):
    model, (x, y) = mlp(3, "softmax"), labels()
    model.compile(adam(), "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=jit)
    trained = [model.train_on_batch(x[at : at + 9], y[at : at + 9], reset_metrics=False) for at in range(0, N, 9)]
    weighted = model.train_on_batch(x[:BATCH], y[:BATCH], sample_weight=np.arange(1.0, BATCH + 1), return_dict=True)
    by_class = model.train_on_batch(x[7:16], y[7:16], class_weight={0: 0.2, 1: 2.0, 2: 1.0})
    tested = [model.test_on_batch(x[:11], y[:11]), model.test_on_batch(x[11:12], y[11:12])]
    predicted = [model.predict_on_batch(x[:size]).tolist() for size in (7, 1)]
    several = {"trained": trained, "weighted": weighted, "by class": by_class}
    return outcome(model, **several, tested=tested, predicted=predicted, called=np.asarray(model(x)).tolist())


if __name__ == "__main__":
    main()
