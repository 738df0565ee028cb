"""All the ways in which TensorFlow and Keras write files: saved, and at once loaded again.

usage: files_tensorflow.py OUT    files go to the working directory
"""

import glob
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def dense():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("sgd", keras.losses.MeanSquaredError(), jit_compile=False)
    return model


def table():
    x = np.arange(40, dtype="float32").reshape(10, 4) / 40
    return x, x.sum(1, keepdims=True)


def trained(model, **options):
    model.fit(*table(), batch_size=4, verbose=0, **options)
    return model


def weights(model):
    return [weight.tolist() for weight in model.get_weights()]


def new_name(folder):
    """A name that no two processes have in common."""
    return f"{folder}/{time.time()}-{os.getpid()}"


@case
def checkpoint_manager():
    variable = tf.Variable(0.0)
    checkpoint = tf.train.Checkpoint(variable=variable)
    manager = tf.train.CheckpointManager(checkpoint, "managed", max_to_keep=2)
    for value in range(4):
        variable.assign(value)
        manager.save()
    variable.assign(99)
    again = tf.train.CheckpointManager(checkpoint, "managed", max_to_keep=2)
    again.restore_or_initialize()
    listed = tf.train.list_variables("managed")
    return float(variable), manager.checkpoints, again.checkpoints, sorted(os.listdir("managed")), listed


@case
def checkpoint_under_new_names():
    variable = tf.Variable(3.0)
    checkpoint = tf.train.Checkpoint(variable=variable)
    folder, values = new_name("timed"), []
    for path in (checkpoint.write(f"{folder}/written"), checkpoint.save(f"{folder}/saved")):
        variable.assign(1)
        checkpoint.read(path)
        values.append(float(variable))
    variable.assign(2)
    checkpoint.restore(tf.train.latest_checkpoint(folder)).assert_consumed()
    return values, float(variable), int(checkpoint.save_counter), len(os.listdir("timed"))


@case
def checkpoint_of_an_iterator():
    iterator = iter(tf.data.Dataset.range(20).map(lambda value: value * 2))
    checkpoint = tf.train.Checkpoint(iterator=iterator)
    first = [int(next(iterator)) for _ in range(5)]
    path = checkpoint.save("iterator/at")
    second = [int(next(iterator)) for _ in range(3)]
    checkpoint.restore(path)
    return first, second, [int(next(iterator)) for _ in range(3)]


@case
def checkpoint_of_training():
    model = trained(dense(), epochs=2)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path, before = checkpoint.save("training/at"), weights(model)
    trained(model)
    checkpoint.restore(path)
    assert weights(model) == before
    return before


@case
def moving_statistics_in_a_checkpoint():
    """They differ between ranks while training; what is saved is the same for all."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile("sgd", keras.losses.MeanSquaredError(), jit_compile=False)
    trained(model)
    path = tf.train.Checkpoint(model=model).write("statistics")
    saved = [tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path) if "moving" in name]
    other = keras.models.clone_model(model)
    tf.train.Checkpoint(model=other).read(path).expect_partial()
    return len(saved), all(np.array_equal(a, b) for a, b in zip(model.get_weights(), other.get_weights(), strict=True))


class Module(tf.Module):
    def __init__(self):
        self.factor = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def __call__(self, value):
        return self.factor * value


@case
def saved_models():
    with tempfile.TemporaryDirectory() as folder:
        values = []
        for path in ("saved", new_name("saved_models"), folder):
            tf.saved_model.save(Module(), path)
            values.append(float(tf.saved_model.load(path)(3.0)))
    return values, sorted(os.listdir("saved")), len(os.listdir("saved_models"))


@case
def keras_models():
    model, (x, _) = trained(dense()), table()
    expected = model.predict(x, verbose=0)
    folder = new_name("models")
    os.makedirs(folder)
    for name in ("model.keras", "model.h5"):
        model.save(f"{folder}/{name}")
        assert np.allclose(keras.models.load_model(f"{folder}/{name}").predict(x, verbose=0), expected)
    model.save_weights(f"{folder}/model.weights.h5")
    other = dense()
    other.load_weights(f"{folder}/model.weights.h5")
    assert weights(other) == weights(model)
    with tempfile.TemporaryDirectory() as temporary:
        model.save(f"{temporary}/model.keras")
        assert weights(keras.models.load_model(f"{temporary}/model.keras")) == weights(model)
    shutil.copy(f"{folder}/model.keras", "final.keras")
    os.remove(f"{folder}/model.keras")
    assert weights(keras.models.load_model("final.keras")) == weights(model)
    return sorted(os.listdir(folder))


@case
def callbacks():
    written = [keras.callbacks.CSVLogger("log.csv"), keras.callbacks.ModelCheckpoint("epochs/{epoch}.keras")]
    trained(dense(), epochs=2, callbacks=[*written, keras.callbacks.BackupAndRestore("backup")])
    with open("log.csv") as file:
        lines = len(file.readlines())
    return lines, sorted(os.listdir("epochs")), os.path.exists("backup")


@case
def tensorboard():
    if not importlib.util.find_spec("tensorboard"):
        return "not installed"
    folder = new_name("board")
    trained(dense(), epochs=2, callbacks=[keras.callbacks.TensorBoard(folder, histogram_freq=1)])
    return len(os.listdir("board")), sorted(os.listdir(folder)), count_events(f"{folder}/train/*")


def count_events(pattern):
    return [sum(1 for _ in tf.compat.v1.train.summary_iterator(name)) for name in glob.glob(pattern)]


@case
def summaries():
    folder = new_name("events")
    writer = tf.summary.create_file_writer(folder)
    with writer.as_default(step=1):
        for step in range(5):
            tf.summary.write("a", step, step=step)
        tf.summary.write("default_step", 1.0)

    @tf.function
    def traced(step):
        with writer.as_default(step=step):
            tf.summary.write("traced", 1.0)

    traced(tf.constant(7, tf.int64))
    writer.flush()
    return len(os.listdir("events")), count_events(f"{folder}/*")


@case
def gfile():
    gfile = tf.io.gfile
    gfile.makedirs("g/a/b")
    gfile.mkdir("g/c")
    for mode, line in (("w", "one\n"), ("a", "two\n")):
        with gfile.GFile("g/1.txt", mode) as file:
            file.write(line)
    gfile.copy("g/1.txt", "g/a/2.txt")
    gfile.rename("g/a/2.txt", "g/a/3.txt")
    tf.io.write_file("g/4.txt", "four")
    seen = [gfile.GFile("g/1.txt").read(), sorted(gfile.listdir("g")), sorted(gfile.glob("g/*.txt"))]
    seen += [gfile.exists(name) for name in ("g/a/2.txt", "g/a/3.txt")] + [gfile.isdir("g/c"), gfile.isdir("g/1.txt")]
    seen += [gfile.stat("g/4.txt").length, tf.io.read_file("g/4.txt").numpy().decode()]
    seen += [sorted((at, sorted(folders), sorted(files)) for at, folders, files in gfile.walk("g"))]
    seen += [[name.decode() for name in tf.io.matching_files("g/*.txt").numpy()]]
    gfile.remove("g/4.txt")
    gfile.rmtree("g/a")
    seen += [sorted(os.listdir("g"))]
    for attempt in (
        lambda: gfile.remove("g/none"),
        lambda: gfile.mkdir("g/none/a"),
        lambda: gfile.GFile("g/none").read(),
        lambda: gfile.listdir("g/none"),
        lambda: gfile.copy("g/1.txt", "g/1.txt"),
        lambda: gfile.rmtree("g/none"),
        lambda: tf.io.read_file("g/none"),
    ):
        try:
            attempt()
            seen.append("nothing")
        except tf.errors.OpError as error:
            seen.append(type(error).__name__)
    return seen


@case
def datasets():
    with tf.io.TFRecordWriter("some.tfrecord") as writer:
        for number in range(7):
            writer.write(str(number).encode())
    os.makedirs("parts")
    names = [f"parts/{number}.txt" for number in range(6)]
    for name in names:
        tf.io.write_file(name, f"in {name}")
    np.savetxt("some.csv", np.eye(3), delimiter=",")
    os.makedirs("cache")
    cached = tf.data.Dataset.range(9).cache("cache/range")
    tf.data.Dataset.range(5).save("dataset")
    listed = tf.data.Dataset.list_files("parts/*.txt", shuffle=False)
    return [
        [item.tolist() for item in map(np.asarray, dataset.map(as_text).as_numpy_iterator())]
        for dataset in (
            tf.data.TFRecordDataset("some.tfrecord"),
            listed.map(tf.io.read_file),
            tf.data.TextLineDataset(listed),
            tf.data.Dataset.from_tensor_slices(names).interleave(tf.data.TextLineDataset, cycle_length=1),
            tf.data.experimental.CsvDataset("some.csv", [0.0] * 3).map(lambda *row: tf.stack(row)),
            cached,
            cached,
            tf.data.Dataset.load("dataset"),
        )
    ]


def as_text(item):
    return tf.strings.to_hash_bucket_fast(item, 1 << 30) if item.dtype == tf.string else item


if __name__ == "__main__":
    out = sys.argv[1]
    results = {}
    for name, function in CASES.items():
        keras.utils.clear_session()
        keras.utils.set_random_seed(1)
        results[name] = function()
    with open(os.path.join(out, f"{os.getpid()}.json"), "w") as file:
        json.dump(results, file)
