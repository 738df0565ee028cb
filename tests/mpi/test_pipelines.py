"""Datasets whose rows are made by `map`: the same results, and each rank makes its own rows where that is possible."""

import parity
import pytest

pytestmark = pytest.mark.timeout(700)

SCRIPT = parity.SCRIPTS / "fit_pipelines.py"
EARLY, LATE = "is split before the `map` of its rows", "is split after its batch"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    run = parity.run(tmp_path_factory.mktemp("pipelines") / "alone", SCRIPT)
    assert run.status == 0, run.output
    assert not [result for result in run.results[0].values() if "error" in result], run.results
    return run.results[0]


@pytest.mark.parametrize("ranks", [2, 3])
def test_as_on_one_process(alone, tmp_path, ranks):
    run = parity.run(tmp_path / "run", SCRIPT, ranks=ranks, options=("-v",))
    assert run.status == 0, run.output + run.logs
    for case, expected in alone.items():
        results = [result[case] for result in run.results]
        assert not [result for result in results if "error" in result], results
        parity.assert_same(expected, results, path=case)
    assert run.output.count(EARLY) == 5, run.output  # shuffled and its evaluation, cached, repeated, endless
    assert f"{LATE}: its batches go through `map`" in run.output  # the prediction of shuffled
    assert f"{LATE}: `map` before its batch uses RandomUniform" in run.output
