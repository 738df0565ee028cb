"""Checkpoints, summaries, hooks: graphs and Sessions of tf.compat.v1 in a script that is TensorFlow 2 otherwise."""

import glob
import os

import numpy as np
import tensorflow.compat.v1 as tf
from v1_examples import adam, batches, example, main, mlp, placeholders, table, weights

X, Y = table()


def regression():
    """(x, y, loss, training operation), with a global step and summaries of the loss, the outputs and the gradients."""
    x, y = placeholders()
    out = mlp(x)
    loss = tf.reduce_mean(tf.square(out - y))
    gradients = adam().compute_gradients(loss)
    operation = adam().apply_gradients(gradients, global_step=tf.train.get_or_create_global_step())
    tf.summary.scalar("loss", loss)
    tf.summary.histogram("out", out)
    tf.summary.histogram("gradient", gradients[0][0])
    return x, y, loss, operation


def read(folder):
    """The summaries of all event files in a folder: {tag: [value, or [count, sum] of a histogram]}."""
    found = {}
    for path in glob.glob(os.path.join(folder, "*tfevents*")):
        for event in tf.train.summary_iterator(path):
            for value in event.summary.value:
                histogram = [value.histo.num, value.histo.sum]
                shown = value.simple_value if value.HasField("simple_value") else histogram
                found.setdefault(value.tag, []).append(shown)
    return found


@example
def saver():
    """Train, save, go on, restore, train again; the files are read back by another Session."""
    x, y, loss, operation = regression()
    saver, losses = tf.train.Saver(max_to_keep=2), []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number, (a, b) in enumerate(batches(X, Y)):
            losses.append(float(session.run([operation, loss], {x: a, y: b})[1]))
            if number % 2:
                path = saver.save(session, "saver/model", global_step=number)
        kept = [os.path.basename(name) for name in saver.last_checkpoints]
        saver.restore(session, path)
        restored = weights(session)
        losses.append(float(session.run([operation, loss], {x: X[:7], y: Y[:7]})[1]))
    with tf.Session() as session:
        saver.restore(session, tf.train.latest_checkpoint("saver"))
        return {"losses": losses, "kept": kept, "path": path, "weights": restored, "again": weights(session)}


@example
def summaries():
    """A FileWriter, and summaries of what a training run computes."""
    x, y, loss, operation = regression()
    merged = tf.summary.merge_all()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        writer = tf.summary.FileWriter("summaries", session.graph)
        for number, (a, b) in enumerate(batches(X, Y)):
            writer.add_summary(session.run([operation, merged], {x: a, y: b})[1], number)
        writer.add_summary(session.run(merged, {x: X, y: Y}), 100)
        writer.close()
        return {"weights": weights(session)}


@example
def summaries_read():
    """What the example before has written."""
    return {"events": read("summaries")}


@example
def monitored():
    """MonitoredTrainingSession with checkpoints, summaries, a stop at a step, and a start from its checkpoint."""
    x, y, loss, operation = regression()
    losses = []
    for last in (6, 10):
        hooks = [tf.train.StopAtStepHook(last_step=last), tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=3)]
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir="monitored",
            hooks=hooks,
            save_checkpoint_steps=4,
            save_summaries_steps=3,
            log_step_count_steps=5,
        ) as session:
            data = batches(X, Y, epochs=3)
            while not session.should_stop():
                a, b = next(data)
                losses.append(float(session.run([operation, loss], {x: a, y: b})[1]))
            data.close()
    tags = {tag: len(values) for tag, values in read("monitored").items() if tag != "global_step/sec"}
    return {"losses": losses, "events": tags}


@example
def saved_graph():
    """A meta graph is imported, and trained on; a SavedModel is written, and loaded."""
    x, y, loss, operation = regression()
    for name, thing in (("x", x), ("y", y), ("loss", loss), ("operation", operation)):
        tf.add_to_collection(name, thing)
    losses = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(operation, {x: X[:7], y: Y[:7]})
        tf.train.Saver().save(session, "graph/model")
        tf.saved_model.simple_save(session, "graph/saved", {"x": x, "y": y}, {"loss": loss})
    with tf.Graph().as_default(), tf.Session() as session:
        loaded = tf.saved_model.load(session, ["serve"], "graph/saved").signature_def["serving_default"]
        feed = {loaded.inputs["x"].name: X, loaded.inputs["y"].name: Y}
        losses.append(float(session.run(loaded.outputs["loss"].name, feed)))
    with tf.Graph().as_default(), tf.Session() as session:
        saver = tf.train.import_meta_graph("graph/model.meta")
        saver.restore(session, "graph/model")
        x, y, loss, operation = [tf.get_collection(name)[0] for name in ("x", "y", "loss", "operation")]
        for a, b in batches(X, Y):
            losses.append(float(session.run([operation, loss], {x: a, y: b})[1]))
        kinds = {node.op for node in session.graph_def.node}
        return {"losses": losses, "weights": weights(session), "portable": "XlaCallModule" not in kinds}


@example
def fed_values():
    """Variables that are set by hand between training runs."""
    x, y, loss, operation = regression()
    first = tf.trainable_variables()[0]
    value = tf.placeholder(tf.float32, first.shape)
    change = first.assign(value)
    losses = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number, (a, b) in enumerate(batches(X, Y)):
            if number == 4:
                session.run(change, {value: np.full(first.shape.as_list(), 0.1)})
            losses.append(float(session.run([operation, loss], {x: a, y: b})[1]))
        return {"losses": losses, "weights": weights(session)}


if __name__ == "__main__":
    main()
