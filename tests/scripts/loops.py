"""Training loops written by hand, with a tf.function around the step."""

import multiprocessing
import os
import tempfile

import keras
import numpy as np
import tensorflow as tf
from cases import BATCH, adam, case, labels, main, table
from networks import batches, network, scaled, weights


@case
def keras_loss_and_metrics(jit):
    """The loop of Keras' guide, with a validation loop; results of all kinds come back."""
    x, y = scaled(*labels())
    model, optimizer = network(3), adam()
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy, mean = keras.metrics.SparseCategoricalAccuracy(), keras.metrics.Mean()
    validation = keras.metrics.SparseCategoricalAccuracy()
    seen = tf.Variable(0)

    @tf.function(jit_compile=jit)
    def step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_fn(y, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        accuracy.update_state(y, logits)
        mean.update_state(loss)
        seen.assign_add(tf.shape(x)[0])
        hits = tf.reduce_sum(tf.cast(tf.argmax(logits, 1, output_type=tf.int32) == y, tf.int32))
        return {"loss": loss, "hits": hits, "logits": logits, "seen": seen.read_value()}

    @tf.function
    def evaluate(x, y):
        validation.update_state(y, model(x, training=False))

    history = []
    for _ in range(2):
        accuracy.reset_state()
        for xs, ys in batches(x, y, epochs=1):
            result = step(xs, ys)
            history.append([float(result["loss"]), int(result["hits"]), result["logits"].numpy().sum(), int(seen)])
        validation.reset_state()
        for xs, ys in tf.data.Dataset.from_tensor_slices((x, y)).batch(11):
            evaluate(xs, ys)
        history.append([float(accuracy.result()), float(mean.result()), float(validation.result())])
    return {"history": history, "weights": weights(model)}


@case
def numpy_slices(jit):
    """No dataset at all; and gradients clipped by hand, by the norm of the whole batch's."""
    x, y = scaled(*table())
    model, optimizer = network(), keras.optimizers.SGD(0.1, momentum=0.9)

    @tf.function(jit_compile=jit)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, norm = tf.clip_by_global_norm(gradients, 0.3)
        optimizer.apply(gradients, model.trainable_variables)
        return loss, norm

    history = []
    for start in [*range(0, len(x), BATCH), 0, 21]:
        history.append([float(v) for v in step(x[start : start + BATCH], y[start : start + BATCH])])
    return {"history": history, "weights": weights(model)}


@case
def which_rows(jit):
    """The last three calls of the step, with the rows they were given: each rank has its own."""
    x, y = table()
    model, optimizer = network(features=5), adam()
    lines = []

    def note(ids):
        ids = ids.astype("int64")
        lines.append([len(ids), int(ids.sum()), int((ids * ids).sum())])

    @tf.function
    def step(x, y):
        tf.numpy_function(note, [tf.round(x[:, -1])], [])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x[:, :-1], training=True) - y))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    for xs, ys in batches(x, y, epochs=1):
        step(xs, ys)
    return {"rows": {"train": lines[-3:]}, "weights": weights(model)}


@case
def sums_over_rows(jit):
    """A loss that is divided by the size of the global batch, as for tf.distribute, with losses of single rows."""
    x, y = scaled(*labels())
    model, optimizer = network(3), adam()
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    @tf.function(jit_compile=jit)
    def step(x, y):
        with tf.GradientTape() as tape:
            rows = loss_fn(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(rows, global_batch_size=BATCH)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss, rows

    history = []
    for xs, ys in batches(x, y):
        loss, rows = step(xs, ys)
        history += [float(loss), float(tf.reduce_max(rows)), len(rows)]
    return {"history": history, "weights": weights(model)}


@case
def updates_by_hand(jit):
    """No optimizer: variables are changed by the gradient itself, in a tf.Module with a method as its step."""

    class Linear(tf.Module):
        def __init__(self):
            self.w, self.b = tf.Variable(tf.zeros([6, 1])), tf.Variable(0.5)
            self.loss = tf.Variable(0.0, trainable=False)

        @tf.function(jit_compile=jit)
        def step(self, x, y, rate):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x @ self.w + self.b - y))
            for v, g in zip([self.w, self.b], tape.gradient(loss, [self.w, self.b])):
                v.assign_sub(rate * g)
            self.loss.assign_add(loss)  # adds up by itself over the epochs

    module = Linear()
    for number, (xs, ys) in enumerate(batches(*scaled(*table()))):
        module.step(xs, ys, tf.constant(0.1 / (1 + number)))
    return {"history": float(module.loss), "weights": [module.w.numpy().tolist(), float(module.b)]}


@case
def accumulated(jit):
    """Gradients of two batches are added up before they are applied."""
    x, y = scaled(*table())
    model, optimizer = network(), adam()
    sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in model.trainable_variables]

    @tf.function(jit_compile=jit)
    def gather(x, y):
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError()(y, model(x, training=True))
        for total, gradient in zip(sums, tape.gradient(loss, model.trainable_variables)):
            total.assign_add(gradient)
        return loss

    @tf.function
    def apply():
        optimizer.apply_gradients(zip([total / 2.0 for total in sums], model.trainable_variables))
        for total in sums:
            total.assign(tf.zeros_like(total))

    history = []
    for number, (xs, ys) in enumerate(batches(x, y)):
        history.append(float(gather(xs, ys)))
        if number % 2:
            apply()
    return {"history": history, "weights": weights(model)}


@case
def gradient_penalty(jit):
    """WGAN-GP, whose penalty is the gradient of an inner tape; two models, two optimizers, no random numbers."""
    x, _ = scaled(*table())
    generator, critic = network(6), network(1)
    optimizers = [keras.optimizers.Adam(0.003, beta_1=0.5, epsilon=1e-3) for _ in range(2)]

    def train(model, optimizer, tape, loss):
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    @tf.function(jit_compile=jit)
    def step(real, noise):
        with tf.GradientTape() as tape:
            fake = generator(noise, training=True)
            between = 0.5 * (real + fake)
            with tf.GradientTape() as inner:
                inner.watch(between)
                score = critic(between, training=True)
            slopes = tf.norm(inner.gradient(score, between), axis=1)
            loss = tf.reduce_mean(critic(fake, training=True)) - tf.reduce_mean(critic(real, training=True))
            loss += 10.0 * tf.reduce_mean((slopes - 1.0) ** 2)
        train(critic, optimizers[0], tape, loss)
        with tf.GradientTape() as tape:
            cost = -tf.reduce_mean(critic(generator(noise, training=True), training=True))
        train(generator, optimizers[1], tape, cost)
        return loss, cost

    noise = np.random.default_rng(3).normal(size=x.shape).astype("float32")
    history = [[float(v) for v in step(*pair)] for pair in batches(x, noise)]
    return {"history": history, "weights": weights(generator, critic)}


@case
def mixed_float16(jit):
    """Loss scaling by hand; one row makes float16 overflow, on one rank only, and the update is skipped on all."""
    x, y = scaled(*table())
    x[3] *= 3000.0
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(1, dtype="float32")])
    finally:
        keras.mixed_precision.set_global_policy("float32")
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=256.0)

    @tf.function(jit_compile=jit)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            scaled_loss = optimizer.scale_loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(scaled_loss, model.trainable_variables), model.trainable_variables))
        return loss

    for start in range(0, len(x), BATCH):
        step(x[start : start + BATCH], y[start : start + BATCH])
    return {"history": [float(optimizer.dynamic_scale), int(optimizer.iterations)], "weights": weights(model)}


@case
def fixed_signature(jit):
    """A batch size that is written into the signature."""
    x, y = scaled(*table(48))
    model, optimizer = network(), adam()

    @tf.function(input_signature=[tf.TensorSpec([8, 6]), tf.TensorSpec([8, 1])], jit_compile=jit)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    return {"history": [float(step(*pair)) for pair in batches(x, y, size=8)], "weights": weights(model)}


@case
def dataset_in_function(jit):
    """A whole epoch, and some steps of one, in a tf.function that draws the batches itself."""
    x, y = scaled(*labels())
    model, optimizer = network(3), adam()
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_fn(y, logits)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        accuracy.update_state(y, logits)
        return loss

    @tf.function
    def epoch(data):
        total = 0.0
        for x, y in data:
            total += step(x, y)
        return total

    @tf.function
    def steps(iterator):
        total = 0.0
        for _ in tf.range(3):
            x, y = next(iterator)
            total += step(x, y)
        return total

    history = [float(epoch(batches(x, y, epochs=1))) for _ in range(2)]
    iterator = iter(batches(x, y))
    history += [float(steps(iterator)) for _ in range(3)]
    return {"history": [*history, float(accuracy.result())], "weights": weights(model)}


class Clipping(keras.Model):
    """A train_step with a loss that is a sum over rows, and gradients clipped by hand."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def call(self, x, training=False):
        return self.inner(x, training=training)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            errors = tf.square(y - self(x, training=True))
            loss = tf.reduce_sum(errors) / BATCH
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 0.3)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss, "norm": norm, "mean": tf.reduce_mean(errors)}


@case
def train_step_of_a_model(jit):
    model = Clipping()
    model.compile(adam(), jit_compile=jit)
    history = model.fit(*scaled(*table()), batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    return {"history": history, "weights": weights(model)}


@case
def structures(jit):
    """Dicts of ragged and dense tensors, sparse ones, and a loss over an embedding of many rows."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(1, 6, 50)
    words = tf.RaggedTensor.from_row_lengths(rng.integers(0, 100_000, lengths.sum()), lengths)
    x, y = scaled(*table())
    table_ = tf.Variable(tf.random.stateless_uniform([100_000, 4], [1, 2], -0.05, 0.05))
    model, optimizer = network(features=10), keras.optimizers.Adam(0.01, epsilon=1e-3)
    few = tf.sparse.from_dense(x * (x > 0.5))

    @tf.function
    def step(batch, y, few):
        variables = [table_, *model.trainable_variables]
        with tf.GradientTape() as tape:
            found = tf.nn.embedding_lookup(table_, tf.cast(batch["words"].flat_values, tf.int32))
            mean = tf.reduce_mean(batch["words"].with_flat_values(found), axis=1)
            wide = tf.concat([mean, batch["x"] + tf.sparse.to_dense(few)], 1)
            loss = tf.reduce_mean(tf.square(model(wide, training=True) - y))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    data = tf.data.Dataset.from_tensor_slices(({"words": words, "x": x}, y, few)).shuffle(50, seed=1).batch(BATCH)
    history = [float(step(*element)) for element in data]
    return {"history": history, "weights": [*weights(model), tf.gather(table_, words[0]).numpy().tolist()]}


@case
def pipelines(jit):
    """One step, and a batch from every kind of input pipeline."""
    x, y = scaled(*table(23))
    model, optimizer = network(), adam()

    @tf.function(reduce_retracing=True)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    def serialized(row, target):
        feature = {"x": tf.train.Feature(float_list=tf.train.FloatList(value=row))}
        feature["y"] = tf.train.Feature(float_list=tf.train.FloatList(value=target))
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    def parse(record):
        parsed = tf.io.parse_single_example(
            record, {"x": tf.io.FixedLenFeature([6], tf.float32), "y": tf.io.FixedLenFeature([1], tf.float32)}
        )
        return parsed["x"], parsed["y"]

    def generate():
        yield from zip(x[:10], y[:10])  # ends early

    with tempfile.TemporaryDirectory() as folder:
        with tf.io.TFRecordWriter(f"{folder}/records") as writer:
            for row, target in zip(x, y):
                writer.write(serialized(row, target))
        for name in "ab":
            os.makedirs(f"{folder}/images/{name}")
            os.makedirs(f"{folder}/texts/{name}")
            for number in range(5):
                pixels = np.full((1, 2, 3), 40 * number + len(name), "uint8")
                tf.io.write_file(f"{folder}/images/{name}/{number}.png", tf.io.encode_png(pixels))
                with open(f"{folder}/texts/{name}/{number}.txt", "w") as file:
                    file.write("word " * number)
        rows = tf.data.Dataset.from_tensor_slices((x, y))
        spec = (tf.TensorSpec([6]), tf.TensorSpec([1]))
        lengths = tf.data.Dataset.range(1, 7).map(lambda n: (tf.ones([n]), tf.cast([n], tf.float32)))
        images = keras.utils.image_dataset_from_directory(
            f"{folder}/images", image_size=(1, 2), batch_size=4, seed=1, verbose=False
        )
        texts = keras.utils.text_dataset_from_directory(f"{folder}/texts", batch_size=4, seed=1, verbose=False)
        pipelines = [
            tf.data.TFRecordDataset(f"{folder}/records").map(parse, num_parallel_calls=2).shuffle(9, seed=2).batch(5),
            tf.data.Dataset.from_generator(generate, output_signature=spec).batch(4).prefetch(1),
            rows.cache().shuffle(23, seed=3).repeat().batch(6).take(3),
            rows.snapshot(f"{folder}/snapshot").batch(7),
            lengths.padded_batch(4, padded_shapes=([6], [1])),
            lengths.ragged_batch(4).map(lambda a, b: (a.to_tensor(shape=[None, 6]), b)),
            images.map(lambda image, label: (tf.reshape(image, [-1, 6]) / 255.0, tf.cast(label, tf.float32)[:, None])),
            texts.map(
                lambda text, label: (
                    tf.tile(tf.cast(tf.strings.length(text), tf.float32)[:, None], [1, 6]) / 50.0,
                    tf.cast(label, tf.float32)[:, None],
                )
            ),
            rows.batch(3).enumerate().map(lambda number, row: row).as_numpy_iterator(),
        ]
        history = [[float(step(*batch)) for batch in pipeline] for pipeline in pipelines]
    return {"history": history, "weights": weights(model)}


@case
def trains_twice(jit):
    """fit and a loop of the script's own, in turn."""
    x, y = scaled(*table(21))
    model, optimizer, results = network(), keras.optimizers.SGD(0.05), []
    model.compile(adam(), "mse")

    @tf.function(jit_compile=jit)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    for _ in range(2):
        results += model.fit(x, y, batch_size=BATCH, verbose=0).history["loss"]
        results += [float(step(*batch)) for batch in batches(x, y, epochs=1)]
    return {"history": results, "weights": weights(model)}


def squares(numbers, queue):
    """What a worker process does: it imports TensorFlow, and computes with it."""
    queue.put(tf.square(numbers).numpy().tolist())


@case
def spawned_worker(jit):
    """A process of the script's own, between two parts of the training."""
    x, y = scaled(*table(21))
    model = network()
    model.compile(adam(), "mse", jit_compile=jit)
    first = model.fit(x, y, batch_size=BATCH, verbose=0).history["loss"]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=squares, args=(y[:4], queue))
    worker.start()
    answer = queue.get(timeout=120)
    worker.join()
    return {"history": [first, model.fit(x, y, batch_size=BATCH, verbose=0).history["loss"], answer, worker.exitcode]}


if __name__ == "__main__":
    main()
