"""Run a script as it is and on ranks, and compare what the processes wrote: values, files, and the rows computed.

The scripts in tests/scripts know nothing of matexrun. Each process writes <out>/<pid>.json (see cases.py there).
"""

import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parents[1] / "scripts"
REPOSITORY = Path(__file__).parents[2]

# `make test-all`: also what differs only in the number of ranks from what the quick suite runs.
EVERYTHING = bool(os.environ.get("MATEXRUN_TEST_EVERYTHING"))

RELATIVE = 1e-5  # of losses, metrics, predictions
ABSOLUTE = 1e-6  # what float32 leaves of those that are zero
WEIGHTS = 1e-5  # of their size around 1, after some 16 updates
EVERY_RANK = "/proc/self/root"  # a path that begins like this is written by every rank; others, by rank 0 alone
NOISE = "[IWE]0000|WARNING: All log messages before absl|To enable the following instructions"  # TensorFlow's own


@dataclass
class Run:
    """How a command ended. output: what it printed; logs: what the other ranks did; results: one dict a process; files:
    names below its working directory, sorted."""

    status: int
    output: str
    logs: str
    results: list[dict]
    files: list[str]


def run(folder: Path, script: Path, *args, ranks: int = 0, options: tuple = (), timeout: float = 300) -> Run:
    """`python script OUT args`, or with `ranks` the same under `matexrun -n ranks options`; `folder` must not exist.

    A command that is not done in time is killed with all its children (status None is never compared equal).
    """
    work, out = folder / "work", folder / "out"
    work.mkdir(parents=True)
    out.mkdir()
    command = ["-m", "matexrun", "-n", str(ranks), "--log-dir", str(folder / "logs"), *options] if ranks else []
    with open(folder / "output", "w") as output:
        process = subprocess.Popen(
            [sys.executable, *command, str(script), EVERY_RANK + str(out), *args],
            cwd=work,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "2"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            end(process, str(out))
            status = None
    logs = "".join(f"--- {log.name}\n{readable(log)}" for log in sorted((folder / "logs").rglob("*.log")))
    results = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    files = sorted(str(path.relative_to(work)) for path in work.rglob("*"))
    return Run(status, readable(folder / "output"), logs, results, files)


def readable(file: Path) -> str:
    """Without TensorFlow's own messages."""
    return "".join(line for line in file.read_text().splitlines(True) if not re.match(NOISE, line))


def end(process: subprocess.Popen, mark: str) -> None:
    """TERM for the launcher, which ends its job; then KILL for whatever still carries `mark` in its command line."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except OSError:
            continue  # it ended meanwhile


def assert_same(expected, got: list, relative: float = RELATIVE, path: str = "") -> None:
    """Every rank's value equals the sequential one, at any depth; what stands under "rows" is split between ranks."""
    if path.endswith("/rows"):
        return assert_split(expected, got, path)
    if isinstance(expected, dict):
        assert all(value.keys() == expected.keys() for value in got), f"{path}: {[list(value) for value in got]}"
        for key, value in expected.items():
            assert_same(value, [other[key] for other in got], relative, f"{path}/{key}")
    elif isinstance(expected, list):
        assert all(len(value) == len(expected) for value in got), f"{path}: {len(expected)}, {[len(v) for v in got]}"
        for index, value in enumerate(expected):
            assert_same(value, [other[index] for other in got], relative, f"{path}[{index}]")
    elif isinstance(expected, float):
        absolute = max(relative, WEIGHTS) if "/weights" in path else ABSOLUTE
        for rank, value in enumerate(got):
            same = math.isclose(value, expected, rel_tol=relative, abs_tol=absolute) or (expected != expected != value)
            assert same, f"{path}: {value} in process {rank}, sequentially {expected}"
    else:
        assert all(value == expected for value in got), f"{path}: {got}, sequentially {expected}"


def assert_split(expected: dict, got: list[dict], path: str = "rows") -> None:
    """The calls of the ranks make up the sequential calls: nobody computed more than a fair slice, none twice.

    expected, and each rank's: {mode: [[rows, sum of ids, sum of squared ids], ...]}. Where there are fewer rows than
    ranks, those without one compute one borrowed row, which does not count.
    """
    for mode, calls in expected.items():
        lists = [rank[mode] for rank in got]
        lengths = [len(lines) for lines in lists]
        assert lengths == [len(calls)] * len(got), f"{path}: {mode} calls: {lengths}, sequentially {len(calls)}"
        for number, (call, *lines) in enumerate(zip(calls, *lists, strict=True)):
            slices = f"{path}: {mode} call {number} of {call} [rows, ids, squares] came as {lines}"
            most = math.ceil(call[0] / len(got))
            assert max(line[0] for line in lines) <= most, f"{slices}: more than {most} rows on one rank"
            choices = itertools.combinations(lines, min(call[0], len(got)))
            assert any([sum(column) for column in zip(*choice, strict=True)] == call for choice in choices), slices
