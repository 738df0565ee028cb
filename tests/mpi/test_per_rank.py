"""--batch per-rank: what a sequential run gives with as many times larger batches and learning rates."""

import parity
import pytest

pytestmark = pytest.mark.timeout(700)

SCRIPT = parity.SCRIPTS / "larger_batches.py"


@pytest.mark.parametrize(
    ("warmup", "cases"),
    [
        (5, ["arrays", "default_batch_size", "dataset", "generator", "py_dataset"]),
        (0, ["plateau"]),
    ],
)
def test_as_with_larger_batches(tmp_path, warmup, cases):
    alone = parity.run(tmp_path / "alone", SCRIPT, "3", str(warmup), "--only", *cases)
    assert alone.status == 0, alone.output
    options = ("-v", "--batch", "per-rank", "--scale-lr", "linear", "--warmup-steps", str(warmup))
    run = parity.run(tmp_path / "run", SCRIPT, "1", str(warmup), "--only", *cases, ranks=3, options=options)
    assert run.status == 0, run.output
    for case in cases:
        results = [result[case] for result in run.results]
        assert not [result for result in results if "error" in result], results
        parity.assert_same(alone.results[0][case], results)
    assert run.output.count("is multiplied by 3") == len(cases)


def test_loops_of_the_script_are_refused(tmp_path):
    script = parity.SCRIPTS / "diverging.py"
    run = parity.run(tmp_path / "run", script, "loop", ranks=2, options=("--batch", "per-rank"))
    assert run.status == 2
    assert "cannot do so for what the function train_step trains on" in run.output
