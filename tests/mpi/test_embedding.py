"""Gradients of embeddings, gathered and dense: the same as on one process; compiled where the optimizer allows it."""

import parity
import pytest

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(700)]

SCRIPT = parity.SCRIPTS / "embedding.py"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    run = parity.run(tmp_path_factory.mktemp("embedding") / "alone", SCRIPT)
    assert run.status == 0, run.output
    return run.results[0]


def check(alone, run, cases):
    assert run.status == 0, run.output + run.logs
    for case in cases:
        results = [result[case] for result in run.results]
        assert not [result for result in results if "error" in result], results
        assert alone[case]["changed"] > 100
        parity.assert_same(alone[case], results)


def test_by_size(alone, tmp_path):
    check(alone, parity.run(tmp_path / "run", SCRIPT, ranks=3), alone)


def test_compiled(alone, tmp_path):
    """SGD's gradients become dense, and jit_compile stays."""
    cases = ["sgd", "sgd_with_momentum"]
    run = parity.run(tmp_path / "run", SCRIPT, "--jit", "on", "--only", *cases, ranks=2)
    check(alone, run, cases)
    assert "jit_compile" not in run.output


def test_dense_where_it_is_not_the_same(alone, tmp_path):
    """Adam is not compiled, and refused where the user wants a dense gradient."""
    cases = ["sgd", "adam_of_keras"]
    run = parity.run(tmp_path / "run", SCRIPT, "--only", *cases, ranks=2, options=("--sparse", "dense"))
    check(alone, run, ["sgd"])
    for result in run.results:
        assert "makes another update of a dense gradient than of slices" in result["adam_of_keras"]["error"]
