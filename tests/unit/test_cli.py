"""The command line as a user types it: every case is a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

import matexrun

ROOT = Path(matexrun.__file__).parents[1]


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Run matexrun in an empty folder with a train.py; returns the finished process."""
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("KERAS_BACKEND", raising=False)

    def run(*arguments, **options):
        command = [sys.executable, "-m", "matexrun", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, **options)

    run.folder = tmp_path
    return run


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "expected a script"),
        (["none.py"], "none.py: no such script"),
        (["."], ". is a directory"),
        (["-n", "0", "train.py"], "--ranks: expected a whole number of at least 1, got 0"),
        (["-n", "-2", "train.py"], "--ranks: expected a whole number of at least 1, got -2"),
        (["-n", "x", "train.py"], "'x' is not a valid integer"),
        (["-n"], "'-n' requires an argument"),
        (["--epochs", "3", "train.py"], "No such option"),
        (["-S", "train.py"], "No such option"),
        (["-I", "train.py"], "No such option"),
        (["--", "-S", "train.py"], "-S: expected a script"),
        (["python", "train.py"], "leave out `python`"),
        (["-m", "nothing"], "no module named nothing"),
        (["--scale-lr", "linear", "train.py"], "--scale-lr and --warmup-steps need --batch per-rank: without it"),
        (["--warmup-steps", "5", "train.py"], "--scale-lr and --warmup-steps need --batch per-rank: without it"),
        (["--batch", "per-rank", "--warmup-steps", "5", "train.py"], "expected --scale-lr linear or sqrt"),
        (["--check-every", "-1", "train.py"], "--check-every: expected a whole number of at least 0, got -1"),
        (["--batch", "local", "train.py"], "--batch: expected global or per-rank, got 'local'"),
        (["--inexact", "no", "train.py"], "--inexact: expected error or warn, got 'no'"),
        (["--collectives", "nccl", "train.py"], "--collectives: expected auto or ffi or numpy, got 'nccl'"),
        (["--bucket-mb", "0", "train.py"], "--bucket-mb: expected a number of at least 0.001, got 0.0"),
        (["--seed", "-1", "train.py"], "--seed: expected a whole number from 0 to 2147483647, got -1"),
        (["--cpus-per-rank", "100000", "train.py"], "1 ranks x 100000 cores are 100000 cores"),
        (["--format", "yaml", "--dry-run", "train.py"], "'yaml' is not one of"),
        (["--config", "none.yaml", "train.py"], "none.yaml: cannot be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_on_stderr_and_status_2(cli, arguments, message):
    ranks = [] if "-n" in arguments else ["-n", "1"]
    answer = cli(*ranks, *arguments)
    assert answer.returncode == 2, answer.stderr
    assert answer.stdout == ""
    (line,) = answer.stderr.splitlines()
    assert line.startswith("matexrun: ") and message in line
    assert list(cli.folder.iterdir()) == [cli.folder / "train.py"]  # no log folder of a job that never began


def test_unknown_key_in_a_configuration_file(cli):
    (cli.folder / "run.yaml").write_text("rank: 3\n")
    answer = cli("--config", "run.yaml", "train.py")
    assert answer.returncode == 2
    assert answer.stderr == "matexrun: run.yaml: unknown key 'rank': did you mean ranks?\n"


def test_another_backend(cli, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    answer = cli("train.py")
    assert (
        answer.returncode == 2
        and "KERAS_BACKEND sets Keras's backend to jax" in answer.stderr
        and answer.stderr.count("\n") == 1
    )


def test_a_strategy_of_its_own(cli):
    (cli.folder / "train.py").write_text("import tensorflow as tf\nstrategy = tf.distribute.MirroredStrategy()\n")
    answer = cli("-n", "2", "train.py")
    assert answer.returncode == 2 and answer.stderr.count("\n") == 1
    assert answer.stderr.startswith("matexrun: train.py line 2: tf.distribute.MirroredStrategy(...): ")


def test_version_and_help(cli):
    assert cli("--version").stdout == f"matexrun {matexrun.__version__}\n"
    answer = cli("--help")
    assert answer.returncode == 0
    assert answer.stdout.startswith("Usage: matexrun [OPTIONS] SCRIPT [ARGS]...")


def test_a_reader_that_leaves_is_no_error_message(cli):
    command = [sys.executable, "-m", "matexrun", "-n", "2000", "--dry-run", "train.py"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cli.folder
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
