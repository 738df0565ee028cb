"""Training loops without any tf.function: usage and results as of the scripts that import cases."""

import keras
import tensorflow as tf
from cases import BATCH, adam, case, labels, main, table
from networks import network, scaled, weights


@case
def losses_and_metrics_of_keras(jit):
    """With a validation loop and single numbers in the middle of an epoch."""
    x, y = scaled(*labels())
    model, optimizer = network(3), adam()
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy, validation = (keras.metrics.SparseCategoricalAccuracy() for _ in range(2))
    data = tf.data.Dataset.from_tensor_slices((x, y))
    history = []
    for _ in range(2):
        accuracy.reset_state()
        for number, (xs, ys) in enumerate(data.shuffle(50, seed=3).batch(BATCH)):
            with tf.GradientTape() as tape:
                logits = model(xs, training=True)
                loss = loss_fn(ys, logits)
            gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 0.5)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            accuracy.update_state(ys, logits)
            history.append(float(loss))
            if number == 4:
                validation.reset_state()
                for some, theirs in data.batch(11):
                    validation.update_state(theirs, model(some))
                history += [float(validation.result()), float(loss_fn(y, model(x)))]
        history.append(float(accuracy.result()))
    return {"history": history, "weights": weights(model)}


@case
def updates_by_hand(jit):
    x, y = scaled(*table())
    w = tf.Variable(tf.zeros([6, 1]))
    for xs, ys in tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).repeat(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(ys - xs @ w))
        w.assign_sub(0.1 * tape.gradient(loss, w))
    return {"weights": w.numpy().tolist()}


@case
def next_of_an_iterator(jit):
    """Two models, two optimizers, one iterator; which rows the last steps get."""
    x, y = table()
    models, optimizers = [network(features=5), network(features=5)], [adam(), adam()]
    iterator = iter(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50, seed=3).batch(BATCH).repeat())
    loss_fn, rows, history = keras.losses.MeanSquaredError(), [], []
    for _ in range(9):
        xs, ys = next(iterator)
        ids = tf.cast(tf.round(xs[:, -1]), tf.int64).numpy()
        rows.append([len(ids), int(ids.sum()), int((ids * ids).sum())])
        for model, optimizer in zip(models, optimizers):
            with tf.GradientTape() as tape:
                loss = loss_fn(ys, model(xs[:, :-1], training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            history.append(float(loss))
    return {"history": history, "rows": {"train": rows[-3:]}, "weights": weights(*models)}


if __name__ == "__main__":
    main()
