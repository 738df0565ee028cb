"""Batches in feed_dict, as in scripts of TensorFlow 1: all of its behaviour, Sessions, optimizers of tf.train."""

import numpy as np
import tensorflow.compat.v1 as tf
from v1_examples import BATCH, FEATURES, Rows, adam, batches, example, main, mlp, placeholders, table, weights

tf.disable_v2_behavior()
X, Y = table()


def train(operation, loss, feed, more=(), epochs=2, rows=None):
    """Losses of all batches, and the weights; feed(x, y) -> feed_dict. Rows are noted in the last run but three."""
    losses, others = [], []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(tf.local_variables_initializer())
        noted = []
        for number, (x, y) in enumerate(batches(X, Y, epochs=epochs)):
            if rows:
                rows.clear()
            _, value, *found = session.run([operation, loss, *more], feed(x, y))
            losses.append(float(value))
            others.append([np.asarray(value, float).tolist() for value in found])
            if rows and number == 12:
                noted = list(rows.calls)
        result = {"losses": losses, "others": others, "weights": weights(session)}
        if rows:
            result["rows"] = {"train": noted}
        return result


@example
def minimize():
    """A mean, a penalty, and fetches of all kinds beside the training operation."""
    x, y = placeholders()
    rate, rows = tf.placeholder(tf.float32), Rows()
    out = mlp(rows(x))
    loss = tf.reduce_mean(tf.square(out - y)) + 0.01 * sum(map(tf.nn.l2_loss, tf.trainable_variables()))
    step = tf.train.get_or_create_global_step()
    operation = tf.train.AdamOptimizer(rate, epsilon=1e-3).minimize(loss, global_step=step)
    close = tf.reduce_sum(tf.cast(tf.abs(out - y) < 0.3, tf.int32))
    fetches = [close, out, tf.reduce_max(out), tf.reduce_sum(tf.abs(out)), tf.shape(x)[1], rate]
    result = train(operation, loss, lambda a, b: {x: a, y: b, rate: 0.01}, fetches, rows=rows)
    with tf.Session() as session:  # another one: evaluations are of whole batches, and what they write is, too
        session.run(tf.global_variables_initializer())
        result["evaluation"] = float(session.run(loss, {x: X, y: Y}))
    return result


@example
def clip_between():
    """compute_gradients, clipping by the norm of all, apply_gradients."""
    x, y = placeholders()
    loss = tf.reduce_mean(tf.square(mlp(x) - y))
    optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, norm = tf.clip_by_global_norm(gradients, 0.1)
    operation = optimizer.apply_gradients(zip(clipped, variables, strict=True))
    return train(operation, loss, lambda a, b: {x: a, y: b}, [norm])


@example
def by_hand():
    """tf.gradients and assign_sub: no optimizer at all; a loss that is a sum over rows, with a penalty."""
    x, y = placeholders()
    error = tf.reduce_sum(tf.square(mlp(x) - y))
    variables = tf.trainable_variables()
    loss = 0.5 * (error + 0.3 * tf.add_n([tf.nn.l2_loss(v) for v in variables]))
    gradients = tf.gradients(loss, variables)
    with tf.control_dependencies(gradients):
        operation = tf.group(*(v.assign_sub(0.003 * g) for v, g in zip(variables, gradients, strict=True)))
    return train(operation, loss, lambda a, b: {x: a, y: b})


@example
def dropout():
    """The masks and the noise of each row are those of one process."""
    x, y = placeholders()
    hidden = mlp(x + tf.random_normal(tf.shape(x), stddev=0.1), outputs=9)
    hidden = tf.nn.dropout(tf.tanh(hidden), rate=0.5)
    loss = tf.reduce_mean(tf.square(mlp(hidden, "second") - y))
    return train(adam().minimize(loss), loss, lambda a, b: {x: a, y: b})


@example
def two_networks():
    """A generator and a critic with a gradient penalty, each with its optimizer, in runs of their own and in one."""
    x, _ = placeholders()
    noise = tf.placeholder(tf.float32, [None, 3])
    fake, rows = mlp(noise, "generator", FEATURES + 1), Rows()
    real = rows(x)
    mixed = 0.3 * real + 0.7 * fake
    slopes = tf.sqrt(1e-6 + tf.reduce_sum(tf.square(tf.gradients(mlp(mixed, "critic"), [mixed])[0]), 1))
    score = tf.reduce_mean(mlp(fake, "critic")) - tf.reduce_mean(mlp(real, "critic"))
    critic_loss = score + tf.reduce_mean(tf.square(slopes - 1))
    generator_loss = -tf.reduce_mean(mlp(fake, "critic"))
    critic = adam().minimize(critic_loss, var_list=tf.trainable_variables("critic"))
    generator = adam().minimize(generator_loss, var_list=tf.trainable_variables("generator"))
    with tf.control_dependencies([critic]):
        both = adam().minimize(generator_loss, var_list=tf.trainable_variables("generator"))
    rng = np.random.default_rng(5)
    losses, noted = [], []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number, (a, _) in enumerate(batches(X, Y, epochs=2)):
            feed = {x: a, noise: rng.normal(size=(len(a), 3))}
            rows.clear()
            losses.append(float(session.run([critic, critic_loss], feed)[1]))
            if number == 12:
                noted = list(rows.calls)
            losses.append(float(session.run([generator, generator_loss], {noise: feed[noise]})[1]))
            session.run(both, feed)
        return {"losses": losses, "weights": weights(session), "rows": {"train": noted}}


@example
def embedding():
    """Gradients that are slices, with an optimizer that touches only their rows."""
    words = tf.placeholder(tf.int32, [None, 4])
    _, y = placeholders()
    vectors = tf.get_variable("vectors", [100, 3])
    out = mlp(tf.reshape(tf.nn.embedding_lookup(vectors, words), [-1, 12]))
    loss = tf.reduce_mean(tf.square(out - y))
    operation = tf.train.FtrlOptimizer(0.1, l2_regularization_strength=0.1).minimize(loss)
    ids = np.random.default_rng(1).integers(0, 40, (len(X), 4))
    numbers = {x.tobytes(): i for x, i in zip(X, ids, strict=True)}
    return train(operation, loss, lambda a, b: {words: [numbers[row.tobytes()] for row in a], y: b})


@example
def whole_batches():
    """A placeholder of a fixed size cannot be split: the same result, by the same work."""
    x = tf.placeholder(tf.float32, [BATCH, FEATURES + 1])
    y = tf.placeholder(tf.float32, [BATCH, 1])
    rows = Rows()
    loss = tf.reduce_mean(tf.square(mlp(rows(x)) - y))
    losses = []
    with tf.Session() as session:
        operation = adam().minimize(loss)
        session.run(tf.global_variables_initializer())
        for a, b in batches(X[:49], Y[:49]):
            losses.append(float(session.run([operation, loss], {x: a, y: b})[1]))
        return {"losses": losses, "weights": weights(session), "most": max(call[0] for call in rows.calls)}


@example
def kept_beside():
    """Streaming metrics, a moving average of the loss and a counter of rows, all updated by the training run."""
    x, y = placeholders()
    out = mlp(x)
    loss = tf.reduce_mean(tf.square(out - y))
    error, update = tf.metrics.mean_absolute_error(y, out)
    close, count_close = tf.metrics.true_positives(y > 0, out > 0)
    seen = tf.get_variable("seen", [], tf.int32, initializer=tf.zeros_initializer(), trainable=False)
    average = tf.train.ExponentialMovingAverage(0.8)
    with tf.control_dependencies([adam().minimize(loss)]):
        operation = tf.group(average.apply([loss]), seen.assign_add(tf.shape(x)[0]))
    more = [update, count_close]
    result = train(tf.group(operation, *more), loss, lambda a, b: {x: a, y: b}, more)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for a, b in batches(X, Y):
            session.run([operation, *more], {x: a, y: b})
        kept = session.run([error, close, seen, average.average(loss)])
        session.run(more, {x: X, y: Y})
        return {**result, "kept": [float(value) for value in [*kept, *session.run([error, close])]]}


@example
def accumulated():
    """Gradients of three batches are added up by hand, then applied."""
    x, y = placeholders()
    loss = tf.reduce_mean(tf.square(mlp(x) - y))
    optimizer = adam()
    pairs = optimizer.compute_gradients(loss)
    sums = [tf.Variable(tf.zeros_like(variable), trainable=False) for _, variable in pairs]
    clear = tf.group(*(total.assign(tf.zeros_like(total)) for total in sums))
    add = tf.group(*(total.assign_add(gradient) for total, (gradient, _) in zip(sums, pairs, strict=True)))
    update = optimizer.apply_gradients(
        [(total / 3, variable) for total, (_, variable) in zip(sums, pairs, strict=True)]
    )
    losses = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number, (a, b) in enumerate(batches(X, Y, epochs=3)):
            losses.append(float(session.run([add, loss], {x: a, y: b})[1]))
            if number % 3 == 2:
                session.run(update)
                session.run(clear)
        return {"losses": losses, "weights": weights(session)}


@example
def interactive():
    """InteractiveSession, eval(), run() and make_callable; a sparse placeholder; weights from NumPy, without a seed."""
    x = tf.sparse_placeholder(tf.float32, [None, 6])
    y = tf.placeholder(tf.float32, [None, 1])
    w = tf.Variable(np.random.normal(size=(6, 1)).astype("float32") * 0.0 + 0.1)
    loss = tf.reduce_mean(tf.square(tf.sparse_tensor_dense_matmul(x, w) - y))
    operation = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    session = tf.InteractiveSession()
    tf.global_variables_initializer().run()
    losses = []
    step = session.make_callable([operation, loss], [x, y])
    for a, b in batches(X, Y):
        indices = np.argwhere(a > 0)
        value = tf.SparseTensorValue(indices, a[a > 0], a.shape)
        losses.append(float(step(value, b)[1]))
        operation.run({x: value, y: b})
        losses.append(float(loss.eval({x: value, y: b})))
    result = {"losses": losses, "weights": w.eval().tolist(), "callable": float(session.make_callable(w)()[0, 0])}
    session.close()
    return result


@example
def recurrent():
    """A loop in the graph, over time; masked by each row's own length."""
    x = tf.placeholder(tf.float32, [None, 4, 3])
    y = tf.placeholder(tf.float32, [None])
    lengths = tf.placeholder(tf.int32, [None])
    w = tf.get_variable("w", [7, 4])
    v = tf.get_variable("v", [4, 1])

    def cell(time, state):
        new = tf.tanh(tf.matmul(tf.concat([x[:, time], state], 1), w))
        return time + 1, tf.where(tf.less(time, lengths), new, state)

    state = tf.while_loop(lambda time, _: time < 4, cell, [0, tf.zeros([tf.shape(x)[0], 4])])[1]
    loss = tf.reduce_mean(tf.square(tf.squeeze(tf.matmul(state, v), 1) - y))
    operation = adam().minimize(loss)

    def feed(a, b):
        return {x: np.resize(a[:, :5], (len(a), 4, 3)), y: b[:, 0], lengths: 1 + np.arange(len(a)) % 4}

    return train(operation, loss, feed, epochs=1)


if __name__ == "__main__":
    main()
