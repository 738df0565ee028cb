"""Files: what ranks leave on disk is what one process leaves, and each rank reads what it has written."""

import hashlib
import re
import sqlite3

import parity
import pytest

RANKS = (2, 3)


def prepare(folder):
    """Files that are there before the job."""
    for name, text in (
        ("counter", "5"),
        ("input.txt", "input"),
        ("history.txt", "before\n"),
        ("inputs/a", "a"),
        ("inputs/b", "b"),
        ("old/1", "1"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    base = sqlite3.connect(folder / "old.sqlite")
    base.execute("create table t (a int)")
    base.execute("insert into t values (1)")
    base.commit()
    base.close()


def contents(folder) -> dict:
    """{name: hash} of files and {name: None} of folders, without what is random in names and times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = re.sub(r"runs/[^/]*", "runs/NAME", str(path.relative_to(folder)))
        count = sum(key.startswith(name) for key in found) if name.endswith("NAME") else 0
        whole = path.is_file() and path.suffix not in (".h5", ".tar")  # which hold times
        found[f"{name}{count or ''}"] = hashlib.sha1(path.read_bytes()).hexdigest() if whole else None
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """plain(ranks): (Run, contents of the folder) of files_plain.py."""

    def run(ranks):
        at = tmp_path_factory.mktemp("plain")
        prepare(at / "folder")
        done = parity.run(at / "run", parity.SCRIPTS / "files_plain.py", str(at / "folder"), ranks=ranks)
        assert done.status == 0, done.output + done.logs
        return done, contents(at / "folder")

    return run


def test_plain_python(plain):
    (alone, expected), *runs = [plain(ranks) for ranks in (0, *RANKS)]
    for ranks, (together, left) in zip(RANKS, runs, strict=True):
        assert len(together.results) == ranks
        parity.assert_same(alone.results[0], together.results)
        assert left == expected


def names(files):
    """Without what is random in them: times and pids, shards of tf.data."""
    return sorted(re.sub(r"\.tfevents\..*|\d{7,}[-.\d]*", "#", name) for name in files)


@pytest.mark.timeout(700)
def test_tensorflow(tmp_path):
    """Checkpoints, SavedModels, Keras' files, event files, tf.io and tf.data."""
    alone, *runs = [parity.run(tmp_path / str(n), parity.SCRIPTS / "files_tensorflow.py", ranks=n) for n in (0, *RANKS)]
    assert alone.status == 0, alone.output
    for ranks, together in zip(RANKS, runs, strict=True):
        assert together.status == 0 and len(together.results) == ranks, together.output + together.logs
        parity.assert_same(alone.results[0], together.results)
        assert names(together.files) == names(alone.files)
