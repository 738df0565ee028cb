"""`--dry-run`: what would run, to the letter, on machines with and without MPI."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import matexrun
from matexrun.launch.dryrun import core_ranges
from matexrun.settings import Settings

ROOT = Path(matexrun.__file__).parents[1]


@pytest.fixture
def dry_run(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("KERAS_BACKEND", raising=False)

    def run(*arguments):
        command = [sys.executable, "-m", "matexrun", "--dry-run", *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert answer.returncode == 0 and answer.stderr == "", answer.stderr
        assert list(tmp_path.iterdir()) == [tmp_path / "train.py"]
        return answer.stdout

    return run


@pytest.fixture
def bare(tmp_path_factory, monkeypatch):
    """An import path on which mpi4py, TensorFlow and Keras cannot be imported, and a PATH without any mpiexec."""
    folder = tmp_path_factory.mktemp("bare")
    for name in ("mpi4py", "tensorflow", "keras"):
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n")
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT}")
    monkeypatch.setenv("PATH", str(folder))


def rows(output):
    return [line for line in output.splitlines() if re.match(r"\W+\d+\W", line)]


def test_64_ranks_are_64_rows_without_tensorflow_or_mpi(dry_run, bare):
    output = dry_run("-n", "64", "train.py")
    assert [int(re.search(r"\d+", row).group()) for row in rows(output)] == list(range(64))
    assert "A run would stop here:" in output and "has no mpi4py" in output
    assert "mpiexec -n 64" in output


def test_the_same_as_json(dry_run, bare):
    plan = json.loads(dry_run("-n", "64", "--format", "json", "train.py"))
    assert [rank["rank"] for rank in plan["ranks"]] == list(range(64))
    assert plan["mpi"] is None and plan["mpiexec"] is None and len(plan["problems"]) == 1


def test_everything_after_the_script_belongs_to_it(dry_run):
    arguments = ["--epochs", "3", "-n", "7", "--dry-run", "--", "a b", "--format=json"]
    plan = json.loads(dry_run("-n", "2", "--format", "json", "train.py", *arguments))
    assert plan["command"][-len(arguments) - 1 :] == ["train.py", *arguments]
    assert len(plan["ranks"]) == 2


def test_everything_after_the_module_belongs_to_it(dry_run):
    plan = json.loads(dry_run("--format", "json", "-n", "2", "-m", "train", "-m", "-n", "7"))
    assert plan["command"][-6:] == [sys.executable, "-m", "train", "-m", "-n", "7"]


def test_options_reach_the_ranks_through_the_environment(dry_run):
    options = [
        "--seed",
        "5",
        "--inexact",
        "warn",
        "--collectives",
        "numpy",
        "--bucket-mb",
        "2",
        "--chunk-mb",
        "1",
        "-vv",
    ]
    plan = json.loads(dry_run("-n", "2", *options, "--log-dir", "logs", "--format", "json", "train.py"))
    settings = Settings.from_env(plan["environment"])
    assert (settings.size, settings.seed, settings.batch, settings.inexact) == (2, 5, "global", "warn")
    assert (settings.collectives, settings.bucket_mb, settings.chunk_mb, settings.verbose) == ("numpy", 2.0, 1.0, 2)
    assert Path(settings.log_dir).is_absolute() and Path(settings.log_dir).name == "logs"
    assert [settings.placement(rank)["cores"] for rank in (0, 1)] == [rank["cores"] for rank in plan["ranks"]]


def test_a_job_has_a_name_and_seed_of_its_own(dry_run):
    plans = [json.loads(dry_run("-n", "1", "--format", "json", "train.py")) for _ in range(2)]
    for plan in plans:
        assert re.fullmatch(r"train-\d{8}-\d{6}-[0-9a-f]{4}", plan["job"])
        assert plan["environment"]["MATEXRUN_LOG_DIR"].endswith(f"/matexrun-logs/{plan['job']}")
    assert plans[0]["job"] != plans[1]["job"]
    assert plans[0]["environment"]["MATEXRUN_SEED"] != plans[1]["environment"]["MATEXRUN_SEED"]


def test_gpus_and_what_a_run_would_stop_at(dry_run, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    plan = json.loads(dry_run("--format", "json", "train.py"))
    assert [rank["gpu"] for rank in plan["ranks"]] == ["4", "6"]
    assert not any("GPU" in problem for problem in plan["problems"])
    output = dry_run("-n", "3", "train.py")
    assert len(rows(output)) == 3 and "A run would stop here: 3 ranks, but 2 visible GPUs" in output


def test_the_table_shows_the_very_command_and_environment(dry_run):
    output = dry_run("-n", "2", "train.py", "--text", "two words")
    assert re.search(r"-n 2 .* -m matexrun\.launch\.worker -- .*python\S* train\.py --text 'two words'\n", output)
    assert "\n  MATEXRUN_SIZE=2\n" in output and "MPI: " in output


@pytest.mark.parametrize(
    "cores, text", [((0,), "0"), ((0, 1, 2, 3), "0-3"), ((8, 0, 1, 3), "0-1,3,8"), ((0, 16, 1, 17), "0-1,16-17")]
)
def test_core_ranges(cores, text):
    assert core_ranges(cores) == text
