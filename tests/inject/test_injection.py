"""Rank processes as scripts see them: a real job of two ranks each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
REPOSITORY = Path(__file__).parents[2]
EVERY_RANK = "/proc/self/root"  # a path that begins like this is written by every rank; others, by rank 0 alone


def matexrun(*arguments, cwd, path=()):
    """The ended process of `matexrun -n 2 ARGUMENTS`, in the folder `cwd`, with `path` in PYTHONPATH."""
    return subprocess.run(
        [sys.executable, "-m", "matexrun", "-n", "2", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*path, REPOSITORY)))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def seen(folder):
    """What the two ranks of see.py have written."""
    both = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    assert len(both) == 2
    return both


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Two ranks of a script with options like matexrun's own, on a machine that has a sitecustomize of its own."""
    folder, site = tmp_path_factory.mktemp("job"), tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text("import sys\nsys.machines_own = True\n")
    done = matexrun(SCRIPTS / "see.py", f"{EVERY_RANK}{folder}", "--epochs", "3", "-n", "7", cwd=folder, path=[site])
    assert done.returncode == 0, done.stderr
    both = seen(folder)
    for one in both:
        one["site"] = str(site)
    return both


def test_the_script_is_main_with_its_own_arguments(ranks):
    for rank in ranks:
        assert rank["name"] == "__main__"
        assert rank["file"] == rank["argv"][0] == str(SCRIPTS / "see.py")
        assert rank["argv"][2:] == ["--epochs", "3", "-n", "7"]
        assert rank["path"][0] == str(SCRIPTS)


def test_nothing_of_the_injection_is_left(ranks):
    for rank in ranks:
        assert not [entry for entry in rank["path"] if "bootstrap" in entry]
        assert rank["after"]["variables"] == []
        assert rank["after"]["PYTHONPATH"] == os.pathsep.join((rank["site"], str(REPOSITORY)))


def test_the_machines_own_sitecustomize_runs(ranks):
    for rank in ranks:
        assert rank["sitecustomize"] == os.path.join(rank["site"], "sitecustomize.py")


def test_children_are_no_ranks(ranks):
    assert [rank["child"] for rank in ranks] == [["False", "False"]] * 2


def test_random_numbers_of_an_unseeded_script_are_the_same_on_all_ranks(ranks):
    for name in ("hash", "random", "numpy", "tensorflow"):
        assert ranks[0][name] == ranks[1][name]


def test_another_job_draws_other_random_numbers(ranks, tmp_path):
    done = matexrun("-m", "scripts.see", f"{EVERY_RANK}{tmp_path}", cwd=SCRIPTS.parent)  # a module this time
    assert done.returncode == 0, done.stderr
    again = seen(tmp_path)
    assert again[0]["argv"] == [str(SCRIPTS / "see.py"), f"{EVERY_RANK}{tmp_path}"]
    for name in ("hash", "random", "numpy", "tensorflow"):
        assert again[0][name] == again[1][name] != ranks[0][name]


@pytest.mark.parametrize(
    ("how", "status", "message"),
    [
        ("strategy", 2, "builds a MirroredStrategy"),
        ("update_by_hand", 0, "never combined between the ranks, because no step of this script could be split"),
    ],
)
def test_refused_or_warned_about(tmp_path, how, status, message):
    done = matexrun(SCRIPTS / "train.py", how, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert done.stderr.count(message) == 1


@pytest.mark.parametrize("how", ["own_mpi", "without_training"])
def test_not_minded(tmp_path, how):
    done = matexrun(SCRIPTS / "train.py", how, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done"  # of rank 0 alone
    assert done.stdout.count("done") == 1
