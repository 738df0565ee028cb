"""Callbacks that decide by global values, and callbacks that write; files go to the working directory."""

import csv
import importlib.util
import os

import keras
import tensorflow as tf
from cases import BATCH, N, case, fit, main, mlp, outcome, table


def compiled(jit):
    model = mlp()
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"], jit_compile=jit)
    return model


def trained(model, callbacks, **options):
    options = {"batch_size": BATCH, "epochs": 4, "validation_split": 0.3, **options}
    return fit(model, *table(), callbacks=callbacks, **options)


@case
def early_stopping(jit):
    stop = keras.callbacks.EarlyStopping(min_delta=0.05, patience=1, restore_best_weights=True)
    results = trained(compiled(jit), [stop], epochs=30)
    return {**results, "stopped": stop.stopped_epoch, "best": stop.best_epoch}


@case
def reduce_lr_on_plateau(jit):
    model = compiled(jit)
    results = trained(model, [keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=0.1, factor=0.3)])
    return {**results, "learning_rate": float(model.optimizer.learning_rate)}


@case
def terminate_on_nan(jit):
    model = compiled(jit)
    model.optimizer.learning_rate = 1e18
    steps = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    trained(model, [count, keras.callbacks.TerminateOnNaN()])
    return {"steps": steps}


@case
def checkpoints(jit):
    """Of the best epoch, of every epoch's weights, and of every fifth step."""
    model = compiled(jit)
    save = [
        keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
        keras.callbacks.ModelCheckpoint("epochs/{epoch:02d}-{val_loss:.3f}.weights.h5", save_weights_only=True),
        keras.callbacks.ModelCheckpoint("steps/{batch:02d}.weights.h5", save_weights_only=True, save_freq=5),
    ]
    results = trained(model, save, epochs=3)
    best = keras.models.load_model("best.keras").predict(table(5)[0], verbose=0).tolist()
    model.load_weights(os.path.join("epochs", sorted(os.listdir("epochs"))[0]))
    return {**results, "best": best, "first": outcome(model)["weights"]}


@case
def csv_logger(jit):
    model = compiled(jit)
    results = [
        trained(model, [keras.callbacks.CSVLogger("log.csv")], epochs=2),
        trained(model, [keras.callbacks.CSVLogger("log.csv", append=True)], epochs=1),
    ]
    with open("log.csv") as file:
        return {"results": results, "csv": [[float(field) for field in line] for line in list(csv.reader(file))[1:]]}


class Interrupted(Exception):
    """What a user's Ctrl-C, or a batch system, does to a run."""


class Interrupt(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise Interrupted


@case
def backup_and_restore(jit):
    def backup():
        return keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False)

    try:
        trained(compiled(jit), [backup(), Interrupt()])
    except Interrupted:
        interrupted = sorted(os.listdir("backup"))
    return {**trained(compiled(jit), [backup()], epochs=5), "interrupted": interrupted}


@case
def tensorboard(jit):
    if not importlib.util.find_spec("tensorboard"):
        return {"skip": "tensorboard is not installed"}
    trained(compiled(jit), [keras.callbacks.TensorBoard("board", write_graph=False)], epochs=2)
    counts = {}
    for part in sorted(os.listdir("board")):
        files = os.listdir(os.path.join("board", part))
        events = [e for name in files for e in tf.compat.v1.train.summary_iterator(os.path.join("board", part, name))]
        counts[part] = [len(files), len(events)]
    return {"counts": counts}


@case
def saved_by_hand(jit):
    model = compiled(jit)
    results = trained(model, [], epochs=1)
    model.save("by_hand.keras")
    model.save_weights("by_hand.weights.h5")
    model.export("exported", verbose=False)
    loaded = keras.models.load_model("by_hand.keras")
    more = trained(loaded, [], epochs=1)
    return {**results, "loaded and trained on": more, "files": sorted(os.listdir("exported"))}


@case
def own_callback_sees_global_values(jit):
    """A callback that evaluates and predicts in the middle of training."""
    x, y = table()
    seen = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append([*self.model.evaluate(x, y, batch_size=11, verbose=0), dict(logs)])
            seen.append(self.model.predict(x, batch_size=N, verbose=0).tolist())

    return {**trained(compiled(jit), [Look()], epochs=2), "seen": seen}


if __name__ == "__main__":
    main()
