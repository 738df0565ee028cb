"""Weights that diverge are an error that names the first of them; gradients that are the same everywhere, a warning."""

import re

import parity
import pytest

pytestmark = pytest.mark.timeout(700)


def run(folder, *args, options=()):
    return parity.run(folder / "run", parity.SCRIPTS / "diverging.py", *args, ranks=2, options=options)


@pytest.mark.parametrize(
    ("way", "options", "when", "trained"),
    [
        ("fit", ["--check-every", "4"], "after update 4", False),
        ("fit", [], "at the end of training", False),
        ("loop", [], "after update 6", True),
    ],
)
def test_a_weight_that_differs(tmp_path, way, options, when, trained):
    found = run(tmp_path, way, options=options)
    assert found.status == 1
    assert re.search(rf"{when} the variable '.*hidden/bias' on rank 1 differs from rank 0's", found.output), (
        found.output
    )
    assert ("trained" in found.output) == trained


def test_gradients_that_are_the_same_on_all_ranks(tmp_path):
    found = run(tmp_path, "same")
    assert found.status == 0, found.output
    assert re.search(r"diverging.py:\d+: in the first 3 updates all ranks computed the same gradients", found.output)


def test_nothing_is_said_of_plain_training(tmp_path):
    found = run(tmp_path, "nothing", options=["--check-every", "1"])
    assert (found.status, found.output.strip()) == (0, "trained"), found.output
