"""All the ways in which Python scripts write files, save them and at once load them again; each case where rank 0 and
the others may come in any order.

usage: files_plain.py OUT FOLDER    FOLDER: as tests/mpi/test_files.py prepares it
"""

import csv
import glob
import json
import multiprocessing
import os
import pathlib
import pickle
import random
import shutil
import sqlite3
import sys
import tarfile
import tempfile
import time
import uuid
import zipfile

import h5py
import numpy as np

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def work():
    """What takes each process another time."""
    time.sleep(random.SystemRandom().uniform(0, 0.03))


def read(path):
    with open(path) as file:
        return file.read()


def write(path, text, mode="w"):
    with open(path, mode) as file:
        file.write(text)


@case
def appended():
    os.makedirs("run")  # fails where it is there already
    for line in ("one\n", "two\n"):
        work()
        write("run/log.txt", line, "a")
    write("run/once", "x", "x")
    work()
    write("history.txt", "now\n", "a")
    return read("run/log.txt"), read("run/once"), read("history.txt")


@case
def counter():
    number = int(read("counter"))
    work()
    write("counter", str(number + 1))
    with open("counter", "r+") as file:
        file.write("7")
        file.seek(0)
        return number, file.read()


@case
def cache():
    if os.path.exists("cache.npy"):
        return "found"
    work()
    np.save("cache.npy", np.arange(100000))
    return int(np.load("cache.npy").sum())


@case
def arrays():
    np.savez("a.npz", a=np.ones(3))
    np.savetxt("a.txt", np.eye(2))
    np.arange(5.0).tofile("a.bin")
    mapped = np.memmap("m.bin", dtype="f4", mode="w+", shape=(4,))
    mapped[:] = 3
    mapped.flush()
    with h5py.File("a.h5", "w") as file:
        file["x"] = np.arange(4)
    with h5py.File("a.h5", "a") as file:
        file["y"] = np.arange(2)
    with h5py.File("a.h5") as file:
        hdf = [file["x"][:].tolist(), file["y"][:].tolist()]
    again = np.memmap("m.bin", dtype="f4", mode="r")
    loaded = [np.load("a.npz")["a"], np.loadtxt("a.txt"), np.fromfile("a.bin"), again]
    return [array.tolist() for array in loaded] + hdf


@case
def formats():
    with open("a.json", "w") as file:
        json.dump({"a": 1}, file)
    with open("a.csv", "w", newline="") as file:
        csv.writer(file).writerows([[1, 2], [3, 4]])
    with open("a.pkl", "wb") as file:
        pickle.dump([1], file)
    with zipfile.ZipFile("a.zip", "w") as file:
        file.writestr(zipfile.ZipInfo("a"), "zipped")
    with tarfile.open("a.tar", "w") as file:
        file.add("inputs/a")
    with open("a.csv") as rows, open("a.pkl", "rb") as pickled, tarfile.open("a.tar") as tar:
        loaded = [json.loads(read("a.json")), list(csv.reader(rows)), pickle.load(pickled), tar.getnames()]
    return loaded + [zipfile.ZipFile("a.zip").read("a").decode()]


@case
def database():
    counts = []
    for path in ("new.sqlite", "old.sqlite"):
        base = sqlite3.connect(path)
        base.execute("create table if not exists t (a int)")
        work()
        base.executemany("insert into t values (?)", [(i,) for i in range(5)])
        base.commit()
        base.close()
        base = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        counts.append(base.execute("select count(*) from t").fetchone()[0])
        base.close()
    return counts


@case
def cleared_folder():
    if os.path.exists("old"):
        before = sorted(os.listdir("old"))
        work()
        shutil.rmtree("old")
    os.mkdir("old")
    empty = os.listdir("old")
    write("old/new", "x")
    return before, empty, os.listdir("old")


@case
def consumed_input():
    text = read("input.txt")
    work()
    os.remove("input.txt")
    return text, os.path.exists("input.txt")


@case
def moved():
    write("a.tmp", "at once")
    os.replace("a.tmp", "a.final")
    pathlib.Path("deep/er/est").mkdir(parents=True)
    pathlib.Path("deep/er/file").touch()
    os.rename("deep/er", "deep/less")
    work()
    os.rename("inputs", "outputs")
    shutil.copy("a.final", "copy")
    shutil.move("copy", "moved")
    shutil.copytree("outputs", "again")
    os.link("moved", "linked")
    os.truncate("moved", 2)
    os.chmod("moved", 0o600)
    walked = [(at, sorted(folders), sorted(files)) for at, folders, files in os.walk("deep")]
    there = [os.path.exists(name) for name in ("a.tmp", "copy", "inputs", "inputs/a")]
    mode = oct(os.stat("moved").st_mode)
    return walked, there, read("outputs/a"), sorted(os.listdir("again")), read("linked"), read("moved"), mode


@case
def links():
    os.makedirs("links/real")
    os.symlink("real", "links/latest")
    write("links/latest/file", "through")
    return (
        os.listdir("links/real"),
        read("links/latest/file"),
        os.readlink("links/latest"),
        os.path.islink("links/latest"),
    )


@case
def found():
    os.makedirs("found/a/b")
    for name in ("1.txt", "a/2.txt", "a/b/3.txt"):
        work()
        write(f"found/{name}", name)
    scanned = sorted((entry.name, entry.is_dir(), entry.is_file()) for entry in os.scandir("found"))
    with_glob = sorted(glob.glob("found/**/*.txt", recursive=True))
    return scanned, with_glob, sorted(map(str, pathlib.Path("found").rglob("*")))


@case
def run_names():
    name = str(uuid.uuid4())
    folders = [f"runs/{time.time()}-{os.getpid()}", f"runs/{name}", f"runs/{uuid.uuid1()}"]
    for folder in folders:
        os.makedirs(folder)
        write(f"{folder}/result", "x")
    folder = tempfile.mkdtemp(dir="runs")
    write(f"{folder}/result", "x")
    return len(os.listdir("runs")), sorted(os.listdir(folders[0])), uuid.UUID(name).version


@case
def temporary():
    with tempfile.TemporaryDirectory() as folder:
        write(f"{folder}/a", "a")
        first = read(f"{folder}/a")
    second = []
    for place in (None, "."):
        with tempfile.NamedTemporaryFile("w+", dir=place) as file:
            file.write("b")
            file.flush()
            second.append(read(file.name))
    with tempfile.TemporaryFile("w+") as file:
        file.write("c")
        file.seek(0)
        return first, os.path.exists(folder), second, file.read()


@case
def working_folder():
    before = os.getcwd()
    os.makedirs("working/here")
    os.chdir("working/here")
    write("file", "x")
    seen = (
        os.path.relpath(os.getcwd(), before),
        os.listdir(),
        os.path.exists("../here/file"),
        str(pathlib.Path.cwd().name),
    )
    os.chdir(before)
    return seen


@case
def errors():
    os.makedirs("errors/full")
    write("errors/full/file", "x")
    attempts = (
        lambda: open("nowhere/file", "w"),
        lambda: open("absent"),
        lambda: open("errors/full/file", "x"),
        lambda: open("errors", "w"),
        lambda: os.mkdir("errors"),
        lambda: os.mkdir("nowhere/folder"),
        lambda: os.rmdir("errors/full"),
        lambda: os.remove("errors"),
        lambda: os.remove("absent"),
        lambda: os.rename("absent", "other"),
        lambda: os.rename("errors", "counter"),
        lambda: os.listdir("absent"),
        lambda: os.listdir("counter"),
        lambda: os.stat("errors/gone"),
        lambda: shutil.rmtree("absent"),
    )
    raised = []
    for attempt in attempts:
        try:
            attempt()
            raised.append("nothing")
        except OSError as error:
            raised.append(type(error).__name__)
    return raised


def child(number):
    write(f"forked/{number}", str(number))
    return os.path.exists("forked/parent")


@case
def forked_children():
    os.makedirs("forked")
    write("forked/parent", "x")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(child, range(3)), sorted(os.listdir("forked"))


if __name__ == "__main__":
    out, folder = os.path.abspath(sys.argv[1]), sys.argv[2]
    os.chdir(folder)
    results = {name: function() for name, function in CASES.items()}
    with open(os.path.join(out, f"{os.getpid()}.json"), "w") as file:
        json.dump(results, file)
