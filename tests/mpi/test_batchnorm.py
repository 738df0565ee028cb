"""--sync-batchnorm: models with BatchNormalization give on ranks what they give alone; and what is said without it."""

import parity
import pytest

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(700)]

SCRIPT = parity.SCRIPTS / "fit_batchnorm.py"
JIT = ["dense", "convolutions", "fewer_rows_than_ranks"]  # compiling takes its time


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    run = parity.run(tmp_path_factory.mktemp("batchnorm") / "alone", SCRIPT)
    assert run.status == 0, run.output
    return run.results[0]


@pytest.mark.parametrize(("ranks", "args"), [(3, []), (2, ["--jit", "on", "--only", *JIT])], ids=["3", "2-jit"])
def test_statistics_of_the_whole_batch(alone, tmp_path, ranks, args):
    together = parity.run(tmp_path / "run", SCRIPT, *args, ranks=ranks, options=("--sync-batchnorm",))
    assert together.status == 0, together.output + together.logs
    assert "BatchNormalization" not in together.output
    chosen = args[3:] or list(alone)
    for case in chosen:
        results = [result[case] for result in together.results]
        assert len(results) == ranks and not [result for result in results if "error" in result], results
        parity.assert_same(alone[case], results, 1e-3 if case == "mixed_float16" else parity.RELATIVE)


def test_without_it_the_run_says_so(alone, tmp_path):
    together = parity.run(tmp_path / "run", SCRIPT, "--only", "dense", ranks=2)
    assert together.status == 0, together.output
    assert together.output.count("--sync-batchnorm takes those of the whole batch") == 1
    with pytest.raises(AssertionError):
        parity.assert_same(alone["dense"]["history"], [result["dense"]["history"] for result in together.results])
