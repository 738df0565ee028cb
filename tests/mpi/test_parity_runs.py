"""Whole runs: the digits, losses that must be refused, one rank that stops, a script without a seed."""

import os
import re
import subprocess
import sys

import parity
import pytest

DIGITS = parity.REPOSITORY / "examples" / "digits.py"
EPOCHS = ("--epochs", "5")


def run(folder, script, *args, **options):
    return parity.run(folder, parity.SCRIPTS / script, *args, **options)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The example on one process, with a model that notes its rows."""
    alone = run(tmp_path_factory.mktemp("digits") / "alone", "digits_noted.py", *EPOCHS)
    assert alone.status == 0, alone.output
    assert len(alone.results[0]["fit"]["history"]["loss"]) == 5
    return alone


def epochs(output: str) -> list[str]:
    return re.findall(r"accuracy: .*|test loss.*", output)


def test_digits(digits, tmp_path):
    """The same epochs, losses and accuracies; each rank computes its slices; rank 0 prints, and one model is saved."""
    together = run(tmp_path / "run", "digits_noted.py", *EPOCHS, ranks=3)
    assert together.status == 0, together.output
    parity.assert_same(digits.results[0], together.results)
    assert together.files == digits.files == ["digits.keras"]
    assert len(epochs(together.output)) == len(epochs(digits.output))


def test_digits_unmodified(digits, tmp_path):
    """The example itself, from the command line to a model file that loads."""
    command = [sys.executable, "-m", "matexrun", "-n", "2", str(DIGITS), *EPOCHS, "--checkpoint", "best.keras"]
    environment = {**os.environ, "PYTHONPATH": str(parity.REPOSITORY)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    expected, got = epochs(digits.output), epochs(done.stdout)
    assert len(got) == len(expected)
    for one, other in zip(expected, got, strict=True):
        numbers = [[float(number) for number in re.findall(r"\d\.\d+", line)] for line in (one, other)]
        assert numbers[1] == pytest.approx(numbers[0], abs=1.01e-4)  # printed with four decimals
    assert [path.name for path in tmp_path.glob("*.keras")] == ["best.keras"]
    load = "import keras; keras.models.load_model('best.keras').summary()"
    assert subprocess.run([sys.executable, "-c", load], cwd=tmp_path, timeout=100).returncode == 0


def test_losses_that_slices_cannot_make_up_are_refused(tmp_path):
    done = run(tmp_path / "run", "refused.py", ranks=2)
    assert len(done.results) == 2
    for result in done.results:
        for loss in ("dice", "tversky", "summed_error", "contrast"):
            assert f"InexactError: the loss '{loss}" in result[loss].get("error", ""), result[loss]
    assert done.status == 1 and "trained" not in done.output  # by the last one, whose error nothing catches
    assert "the loss 'contrast_in_batch'" in done.output


@pytest.fixture(scope="module")
def decided_alone(tmp_path_factory):
    return run(tmp_path_factory.mktemp("decided_alone") / "run", "decided_alone.py", ranks=3)


def test_a_stop_on_one_rank_stops_all(decided_alone):
    results = [result["stopping"] for result in decided_alone.results]
    assert sorted(result["decided"] for result in results) == [False, False, True]
    steps = {(result["steps"], result["updates"]) for result in results}
    assert len(steps) == 1
    assert 11 <= steps.pop()[0] <= 12  # agreed at the next update at the latest
    assert all(result["weights"] == results[0]["weights"] for result in results)


def test_all_ranks_start_with_the_weights_of_one(decided_alone):
    """Each process chooses weights of its own; training begins with rank 0's, and ends with the same on all ranks."""
    results = [result["own_weights"] for result in decided_alone.results]
    before, start, after = ([str(result[key]) for result in results] for key in ("before", "start", "weights"))
    assert len(set(before)) == 3
    assert len(set(start)) == 1 and set(start) <= set(before)
    assert len(set(after)) == 1


def test_models_that_differ_between_ranks_are_an_error(decided_alone):
    assert decided_alone.status == 1
    assert "the model on rank 1 is not the one on rank 0" in decided_alone.output


def test_without_a_seed(tmp_path):
    """Nobody set a seed: ranks still agree, learn, see all rows once an epoch, and in another order each time."""
    unseeded = run(tmp_path / "run", "unseeded.py", ranks=3)
    assert unseeded.status == 0, unseeded.output
    for kind in ("arrays", "dataset"):
        results = [result[kind] for result in unseeded.results]
        first, *others = [{k: v for k, v in result.items() if k != "rows"} for result in results]
        parity.assert_same(first, others)
        losses = results[0]["history"]["loss"]
        assert losses[-1] < 0.5 * losses[0]
        orders = set()
        for epoch in range(8):
            steps = [each_step(result["rows"]["train"], epoch) for result in results]
            *full, (last, *borrowed) = zip(*steps, strict=True)
            assert borrowed == [last, last]  # one row is left for the last batch, and rank 1 and 2 borrow it
            assert sum(map(sum, full)) + last == 50 * 51 // 2
            orders.add(str(steps))
        assert len(orders) == 8


def each_step(lines, epoch):
    """Sums of ids of a rank's slices of the batches of this epoch."""
    calls = len(lines) // 8
    return [ids for _, ids, _ in lines[epoch * calls : (epoch + 1) * calls]]
