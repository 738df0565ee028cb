"""The comparison itself: what N copies of the whole run, or a wrong split, look like to it."""

import subprocess
import sys

import parity
import pytest

WHOLE = {"train": [[7, 28, 140], [1, 8, 64]], "infer": []}
HALVES = [{"train": [[4, 10, 30], [1, 8, 64]], "infer": []}, {"train": [[3, 18, 110], [1, 8, 64]], "infer": []}]


def test_a_split_is_accepted():
    parity.assert_split(WHOLE, HALVES)


@pytest.mark.parametrize(
    "ranks",
    [
        [WHOLE, WHOLE],
        [WHOLE, {"train": [], "infer": []}],
        [{"train": HALVES[0]["train"][:1], "infer": []}, {"train": HALVES[1]["train"][:1], "infer": []}],
        [HALVES[0], HALVES[0]],
        [{"train": [[6, 21, 91], [1, 8, 64]], "infer": []}, {"train": [[1, 7, 49], [1, 8, 64]], "infer": []}],
        [{**HALVES[0], "infer": [[1, 1, 1]]}, HALVES[1]],
    ],
    ids=["copies", "one rank does all", "a call is missing", "a slice twice", "unfair", "more calls"],
)
def test_what_is_no_split_is_refused(ranks):
    with pytest.raises(AssertionError):
        parity.assert_split(WHOLE, ranks)


def test_redundant_copies_of_a_real_run_are_refused(tmp_path):
    """Two processes that each train on everything give the right values; only the rows betray them."""
    script = [sys.executable, str(parity.SCRIPTS / "fit_inputs.py"), str(tmp_path), "--only", "dicts"]
    copies = [subprocess.Popen(script, stdin=subprocess.DEVNULL) for _ in range(2)]
    assert [copy.wait(100) for copy in copies] == [0, 0]
    results = [parity.json.loads(path.read_text())["dicts"] for path in tmp_path.glob("*.json")]
    assert all("rows" in result for result in results), results
    without_rows = [{key: value for key, value in result.items() if key != "rows"} for result in results]
    parity.assert_same(without_rows[0], without_rows)
    with pytest.raises(AssertionError, match="/rows: train call 0"):
        parity.assert_same(results[0], results)
