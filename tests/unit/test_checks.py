"""What cannot be run is refused in one line, before anything starts; what `python` would run is not."""

import json
import py_compile
import re
import zipapp

import pytest

from matexrun.errors import UsageError
from matexrun.launch.checks import check
from matexrun.launch.command import Target


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder as current folder and home, and nothing of Keras's in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.delenv("KERAS_HOME", raising=False)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    (tmp_path / "train.py").write_text("print(1)\n")
    return tmp_path


def refused(target, message):
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        check(target)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name, message",
    [
        ("nothing.py", "nothing.py: no such script"),
        ("train", "train: no such script: did you mean train.py?"),
        (".", ". is a directory"),
        ("/dev/null", "/dev/null: expected a Python script in a regular file"),
        ("python", "leave out `python`"),
        ("python3.11", "leave out `python3.11`"),
        ("/usr/bin/python3", "leave out `/usr/bin/python3`"),
        ("-S", "-I, -S and -E, which keep matexrun out of the ranks"),
        ("-", "-: expected a script"),
    ],
)
def test_scripts_that_are_none(name, message):
    refused(Target(name), message)


def test_a_script_that_can_run_passes():
    check(Target("train.py", ("python", "-n", "0")))
    check(Target("./train.py"))


def test_text_that_is_not_python(folder):
    (folder / "train.py").write_text("x = 1\nx = = 2\n")
    refused(Target("train.py"), "train.py line 2: not Python 3.")
    (folder / "train.py").write_bytes(b"\x7fELF\0\0\0")
    refused(Target("train.py"), "train.py")


def test_archives_and_compiled_scripts_pass_unread(folder):
    (folder / "app").mkdir()
    (folder / "app" / "__main__.py").write_text("print(1)\n")
    zipapp.create_archive(folder / "app", folder / "app.pyz")
    check(Target("app.pyz"))
    py_compile.compile(str(folder / "train.py"), cfile=str(folder / "train.pyc"))
    check(Target("train.pyc"))


def test_a_strategy_is_refused_with_its_line(folder):
    (folder / "train.py").write_text("import tensorflow as tf\n\ns = tf.distribute.MirroredStrategy()\n")
    refused(Target("train.py"), "train.py line 3: tf.distribute.MirroredStrategy(...): matexrun distributes")


def test_a_module_is_looked_at_like_a_script(folder):
    (folder / "train.py").write_text("import horovod.tensorflow as hvd\n")
    refused(Target("train", is_module=True), "train.py line 1: import horovod.tensorflow as hvd: matexrun distributes")


@pytest.mark.parametrize(
    "name, message",
    [
        ("train.py", "leave out -m for a script"),
        ("nothing", "no module named nothing"),
        ("package.nothing", "no module named package.nothing"),
        ("train.sub", "train is a module, not a package"),
        ("empty", "a package without __main__.py cannot be run"),
    ],
)
def test_modules_that_are_none(folder, name, message):
    for package in ("package", "empty"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text("raise SystemExit('a check must not import this')\n")
    refused(Target(name, is_module=True), message)


def test_modules_that_can_run_pass_without_being_imported(folder):
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("raise SystemExit('a check must not import this')\n")
    (folder / "package" / "__main__.py").write_text("print(1)\n")
    (folder / "package" / "tool.py").write_text("print(1)\n")
    (folder / "json").mkdir()  # a mere folder does not hide the standard library's package
    for name in ("train", "package", "package.tool", "json.tool"):
        check(Target(name, is_module=True))


def test_a_safe_path_hides_the_current_folder(monkeypatch):
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry])
    refused(Target("train", is_module=True), "no module named train")


def test_another_backend_of_keras_in_the_environment(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    refused(Target("train.py"), "KERAS_BACKEND sets Keras's backend to jax")
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    check(Target("train.py"))


def test_another_backend_in_keras_json(folder, monkeypatch):
    (folder / ".keras").mkdir()
    (folder / ".keras" / "keras.json").write_text(json.dumps({"backend": "torch"}))
    refused(Target("train.py"), "keras.json sets Keras's backend to torch")
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")  # wins over the file, as in Keras
    check(Target("train.py"))
    monkeypatch.delenv("KERAS_BACKEND")
    monkeypatch.setenv("KERAS_HOME", str(folder))  # no keras.json there
    check(Target("train.py"))
    (folder / "keras.json").write_text(json.dumps({"backend": "jax"}))
    refused(Target("train.py"), f"{folder}/keras.json sets Keras's backend to jax")
    (folder / "keras.json").write_text("not JSON")
    check(Target("train.py"))


def test_the_scripts_own_backend_wins_over_the_environment(folder, monkeypatch):
    (folder / "train.py").write_text("import os\nos.environ['KERAS_BACKEND'] = 'jax'\n")
    refused(Target("train.py"), "train.py sets Keras's backend to jax")
    (folder / "train.py").write_text("import os\nos.environ['KERAS_BACKEND'] = 'tensorflow'\n")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    check(Target("train.py"))
