"""tf.keras as it was before Keras 3: callbacks, and every way to save and load; files go to the working directory."""

import csv
import importlib.util
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tensorflow as tf  # noqa: E402
from tfkeras_cases import BATCH, FEATURES, N, case, main, table  # noqa: E402

keras = tf.keras


def compiled():
    model = keras.Sequential(
        [keras.layers.Dense(8, activation="tanh", input_shape=(FEATURES,)), keras.layers.Dense(1, name="head")]
    )
    model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse", metrics=["mae"])
    return model


def data(n=N):
    x, y = table(n)
    return x[:, :FEATURES], y


def trained(model, callbacks=(), **options):
    options = {"batch_size": BATCH, "epochs": 3, "validation_split": 0.3, "verbose": 0, **options}
    history = model.fit(*data(), callbacks=list(callbacks), **options).history
    return {"history": history, "weights": [weight.tolist() for weight in model.get_weights()]}


@case
def callbacks_that_decide(jit):
    stop = keras.callbacks.EarlyStopping(min_delta=0.05, patience=1, restore_best_weights=True)
    slower = keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=0.1, factor=0.3, min_lr=1e-4)
    model = compiled()
    results = trained(model, [stop, slower], epochs=20)
    return {**results, "stopped": stop.stopped_epoch, "learning_rate": float(model.optimizer.learning_rate)}


@case
def checkpoints_and_log(jit):
    best = keras.callbacks.ModelCheckpoint("best.h5", save_best_only=True)
    every = keras.callbacks.ModelCheckpoint("weights/{epoch:02d}", save_weights_only=True)
    often = keras.callbacks.ModelCheckpoint("steps/{batch:02d}.weights.h5", save_weights_only=True, save_freq=4)
    results = trained(compiled(), [best, every, often, keras.callbacks.CSVLogger("log.csv")])
    loaded = keras.models.load_model("best.h5").predict(data(5)[0], verbose=0)
    again = compiled()
    again.load_weights(tf.train.latest_checkpoint("weights")).expect_partial()
    with open("log.csv") as file:
        lines = [[float(field) for field in line] for line in list(csv.reader(file))[1:]]
    return {**results, "best": loaded.tolist(), "last": [w.tolist() for w in again.get_weights()], "csv": lines}


class Interrupted(Exception):
    """What a user's Ctrl-C, or a batch system, does to a run."""


@case
def backup_and_restore(jit):
    def interrupt(epoch, logs):
        if epoch == 1:
            raise Interrupted

    def backup():
        return keras.callbacks.BackupAndRestore("backup")

    try:
        trained(compiled(), [backup(), keras.callbacks.LambdaCallback(on_epoch_end=interrupt)], epochs=4)
    except Interrupted:
        interrupted = sorted(os.listdir("backup/chief"))
    return {**trained(compiled(), [backup()], epochs=4), "interrupted": interrupted}


@case
def tensorboard(jit):
    if not importlib.util.find_spec("tensorboard"):
        return {"skip": "tensorboard is not installed"}
    trained(compiled(), [keras.callbacks.TensorBoard("board", write_graph=False)], epochs=2)
    counts = {}
    for part in sorted(os.listdir("board")):
        files = os.listdir(os.path.join("board", part))
        events = [e for name in files for e in tf.compat.v1.train.summary_iterator(os.path.join("board", part, name))]
        counts[part] = [len(files), len(events)]
    return {"counts": counts}


@case
def saved_by_hand(jit):
    model = compiled()
    results, x = trained(model, epochs=1), data(5)[0]
    for name in ("saved_model", "model.h5", "model.keras"):
        model.save(name)
        loaded = keras.models.load_model(name)
        results[name] = {"loaded": loaded.predict(x, verbose=0).tolist(), "trained on": trained(loaded, epochs=1)}
    for name in ("checkpoint/weights", "weights.h5", "model.weights.h5"):
        model.save_weights(name)
        again = compiled()
        again.load_weights(name)
        results[name] = again.predict(x, verbose=0).tolist()
    model.export("exported")
    exported = tf.saved_model.load("exported")
    return {**results, "exported": exported.serve(x).numpy().tolist()}


if __name__ == "__main__":
    main()
