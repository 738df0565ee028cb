"""Data that the graph itself fetches: iterators of tf.data and queues. No eager execution, else as in TensorFlow 2."""

import numpy as np
import tensorflow.compat.v1 as tf
from v1_examples import BATCH, N, Rows, adam, example, main, mlp, table, weights

tf.disable_eager_execution()
X, Y = table()


def dataset(x=X, y=Y, **options):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, **options)


def regression(x, y, rows=lambda x: x):
    """(training operation, loss) of a small network."""
    loss = tf.reduce_mean(tf.square(mlp(rows(x)) - y)) + 0.01 * sum(map(tf.nn.l2_loss, tf.trainable_variables()))
    return adam().minimize(loss), loss


def until_the_end(session, operation, loss):
    losses = []
    while True:
        try:
            losses.append(float(session.run([operation, loss])[1]))
        except tf.errors.OutOfRangeError:
            return losses


@example
def one_shot():
    """An iterator that needs no initialisation, over a shuffled, repeated dataset."""
    rows = Rows()
    x, y = tf.data.make_one_shot_iterator(dataset().shuffle(100, seed=2).repeat(2)).get_next()
    operation, loss = regression(x, y, rows)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        losses = [float(session.run([operation, loss])[1]) for _ in range(12)]
        rows.clear()
        losses.append(float(session.run([operation, loss])[1]))
        noted = list(rows.calls)
        losses += until_the_end(session, operation, loss)
        return {"losses": losses, "weights": weights(session), "rows": {"train": noted}}


@example
def training_and_validation():
    """One get_next for both, by an iterator that is initialised with one dataset after the other."""
    train, validation = dataset(), dataset(*table(20, seed=8))
    iterator = tf.data.Iterator.from_structure(tf.data.get_output_types(train), tf.data.get_output_shapes(train))
    element = iterator.get_next()
    begin = {"train": iterator.make_initializer(train), "validation": iterator.make_initializer(validation)}
    operation, loss = regression(*element)
    losses = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            session.run(begin["train"])
            losses += until_the_end(session, operation, loss)
            session.run(begin["validation"])
            losses += until_the_end(session, [], loss)
        return {"losses": losses, "weights": weights(session)}


@example
def by_handle():
    """Initialisable iterators, chosen by a handle that is fed; dicts; a metric that evaluation adds up."""
    sets = [tf.data.Dataset.from_tensor_slices({"x": x, "y": y}).batch(BATCH) for x, y in ((X, Y), table(20, seed=8))]
    iterators = [tf.data.make_initializable_iterator(data) for data in sets]
    handle = tf.placeholder(tf.string, [])
    iterator = tf.data.Iterator.from_string_handle(
        handle, tf.data.get_output_types(sets[0]), tf.data.get_output_shapes(sets[0])
    )
    element = iterator.get_next()
    operation, loss = regression(element["x"], element["y"])
    mean, update = tf.metrics.mean(loss)
    losses = []
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        train, validation = session.run([it.string_handle() for it in iterators])
        session.run([it.initializer for it in iterators])
        for _ in range(8):
            losses.append(float(session.run([operation, loss], {handle: train})[1]))
        for _ in range(3):
            session.run(update, {handle: validation})
        return {"losses": losses, "weights": weights(session), "mean": float(session.run(mean))}


@example
def noise_of_the_batch():
    """Two datasets and noise that is fed, in one loss."""
    x, y = tf.data.make_one_shot_iterator(dataset().repeat(2)).get_next()
    other, _ = tf.data.make_one_shot_iterator(dataset(*table(seed=9)).repeat(2)).get_next()
    noise = tf.placeholder(tf.float32, [None, 6])
    operation, loss = regression(x + 0.1 * other + noise, y)
    rng = np.random.default_rng(0)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        losses = []
        for number in range(10):
            feed = {noise: rng.normal(size=(BATCH if number != 7 else N % BATCH, 6))}
            losses.append(float(session.run([operation, loss], feed)[1]))
        return {"losses": losses, "weights": weights(session)}


@example
def by_tape():
    """A GradientTape that records a graph."""
    x, y = tf.data.make_one_shot_iterator(dataset()).get_next()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(mlp(x) - y))
    variables = tf.trainable_variables()
    operation = adam().apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return {"losses": until_the_end(session, operation, loss), "weights": weights(session)}


@example
def fixed_size():
    """drop_remainder gives a batch dimension that the script may rely on."""
    x, y = tf.data.make_one_shot_iterator(dataset(drop_remainder=True)).get_next()
    operation, loss = regression(tf.reshape(x, [BATCH, 6]), y)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return {"losses": until_the_end(session, operation, loss), "weights": weights(session)}


@example
def queue():
    """tf.train.batch over a queue that a thread fills."""
    x, y = tf.train.slice_input_producer([X, Y], num_epochs=2, shuffle=False)
    operation, loss = regression(*tf.train.batch([x, y], BATCH, allow_smaller_final_batch=True))
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        losses = until_the_end(session, operation, loss)
        coordinator.request_stop()
        coordinator.join(threads)
        return {"losses": losses, "weights": weights(session)}


@example
def branches():
    """Batch normalisation by hand, whose averages are updated in a branch of the graph."""
    x, y = tf.data.make_one_shot_iterator(dataset()).get_next()
    training = tf.placeholder_with_default(False, [])
    average = tf.get_variable("average", [6], initializer=tf.zeros_initializer(), trainable=False)

    def batch_mean():
        mean = tf.reduce_mean(x, 0)
        with tf.control_dependencies([average.assign(0.9 * average + 0.1 * mean)]):
            return tf.identity(mean)

    operation, loss = regression(x - tf.cond(training, batch_mean, lambda: average.read_value()), y)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        losses = [float(session.run([operation, loss], {training: True})[1]) for _ in range(7)]
        return {"losses": losses, "weights": weights(session), "average": session.run(average).tolist()}


@example
def supervisor():
    """tf.train.Supervisor, whose thread saves, and whose loop asks whether to stop."""
    x, y = tf.data.make_one_shot_iterator(dataset()).get_next()
    operation, loss = regression(x, y)
    step = tf.train.get_or_create_global_step()
    operation = tf.group(operation, step.assign_add(1))
    supervisor = tf.train.Supervisor(logdir="supervisor", global_step=step, summary_op=None, save_model_secs=600)
    losses = []
    with supervisor.managed_session() as session:
        while not supervisor.should_stop():
            losses.append(float(session.run([operation, loss])[1]))
            if len(losses) == 7:
                supervisor.request_stop()
    return {"losses": losses}


if __name__ == "__main__":
    main()
