"""Hand-written loops beyond those that `test_parity` runs: eager ones, and steps that cannot be split."""

import parity
import pytest

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    run = parity.run(tmp_path_factory.mktemp("loops") / "alone", parity.SCRIPTS / "eager_loops.py")
    assert run.status == 0, run.output
    return run.results[0]


@pytest.mark.parametrize("ranks", [2, 3])
def test_eager_loops_are_split_where_that_is_asked_for(alone, tmp_path, ranks):
    options = ("--eager-loops", "split")
    run = parity.run(tmp_path / "run", parity.SCRIPTS / "eager_loops.py", ranks=ranks, options=options)
    assert run.status == 0, run.output + run.logs
    parity.assert_same(alone, run.results)
    assert run.output.count("the loss of a loop that runs eagerly is computed by hand") == 1  # updates_by_hand


def test_eager_loops_are_whole_otherwise(alone, tmp_path):
    run = parity.run(tmp_path / "run", parity.SCRIPTS / "eager_loops.py", ranks=2)
    assert run.status == 0, run.output + run.logs
    rows = [result["next_of_an_iterator"].pop("rows") for result in run.results]
    assert rows == [alone["next_of_an_iterator"]["rows"]] * 2
    expected = {**alone, "next_of_an_iterator": {k: v for k, v in alone["next_of_an_iterator"].items() if k != "rows"}}
    parity.assert_same(expected, run.results)
    assert run.output.count("all ranks do the same work") == 1


REASONS = {
    "dice": "train: the gradient of its loss on 7 rows is neither the mean nor the sum of those on parts of them",
    "contrastive": "train: the gradient of its loss on 7 rows is neither the mean nor the sum",
    "fixed_number_of_rows": "train works on a batch of 7 rows, but not on part of it",
    "largest_of_a_batch": "train: result 0 is 1.58927 for 50 rows, neither the mean",
    "train_step_of_a_model": "train_step: the gradient of its loss on 7 rows is neither the mean nor the sum",
}


def test_steps_that_slices_cannot_make_up_are_refused(tmp_path):
    run = parity.run(tmp_path / "run", parity.SCRIPTS / "loops_refused.py", ranks=2)
    for result in run.results:
        assert result.keys() == REASONS.keys()
        for case, reason in REASONS.items():
            assert f"InexactError: {reason}" in result[case].get("error", ""), result[case]


def test_they_run_with_a_warning_where_that_is_asked_for(tmp_path):
    args = ("--only", "dice", "largest_of_a_batch")
    script = parity.SCRIPTS / "loops_refused.py"
    run = parity.run(tmp_path / "run", script, *args, ranks=2, options=("--inexact", "warn"))
    assert run.status == 0 and not [result for result in run.results if "error" in str(result)], run.output
    for case in args[1:]:
        assert run.output.count(REASONS[case]) == 1, run.output


def test_reduced_at_the_optimizer(tmp_path):
    """Accumulated gradients can be combined there; ones clipped by hand in between are not the whole batch's."""
    script, args = parity.SCRIPTS / "loops.py", ("--only", "accumulated", "numpy_slices")
    alone = parity.run(tmp_path / "alone", script, *args)
    run = parity.run(tmp_path / "run", script, *args, ranks=2, options=("--reduce-at", "optimizer"))
    parity.assert_same(alone.results[0]["accumulated"], [result["accumulated"] for result in run.results])
    for result in run.results:
        assert "InexactError: step: the gradient of its loss on 7 rows" in result["numpy_slices"]["error"]


def test_pipelines_keep_their_order(tmp_path):
    """Each rank would have other batches, where a script allows any order."""
    run = parity.run(tmp_path / "run", parity.SCRIPTS / "any_order.py", ranks=2)
    assert (run.status, run.output.split()) == (0, ["True", "True"]), run.output
