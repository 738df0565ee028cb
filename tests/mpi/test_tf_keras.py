"""Scripts of tf_keras (Keras 2), case by case: on ranks they give what they give alone, and the work is split."""

import functools

import parity
import pytest
from test_parity import cases, results, shown

pytestmark = [pytest.mark.tf_keras, pytest.mark.timeout(700)]

# Compiling takes its time, so with jit only those whose collectives stand in the compiled step.
JIT = ["dataset_in_executions_of_3_steps", "loss_scale_that_overflows_on_one_rank", "own_train_step"]
RUNS = {
    "fit": ("tfkeras_fit.py", 3, ()),
    "jit": ("tfkeras_fit.py", 2, ("--jit", "on", "--only", *JIT)),
    "files": ("tfkeras_files.py", 3, ()),
}
if parity.EVERYTHING:
    RUNS |= {"fit on 2": ("tfkeras_fit.py", 2, ()), "files on 2": ("tfkeras_files.py", 2, ())}
CASES = [(name, case) for name, (script, _, args) in RUNS.items() for case in (args[3:] or cases(script))]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """run(script, ranks, args), made when it is first asked for."""

    @functools.cache
    def run(script, ranks, args):
        return parity.run(
            tmp_path_factory.mktemp(script) / "run", parity.SCRIPTS / script, *args, ranks=ranks, timeout=600
        )

    return run


@pytest.mark.parametrize(("name", "case"), CASES)
def test_case(run, name, case):
    script, ranks, args = RUNS[name]
    (expected,), got = results(run(script, 0, ()), case), results(run(script, ranks, args), case)
    assert len(got) == ranks
    assert "error" not in expected, expected["error"]
    errors = [result["error"] for result in got if "error" in result]
    assert not errors, errors[0]
    if "skip" in expected:
        pytest.skip(expected["skip"])
    parity.assert_same(expected, got, 1e-3 if case == "mixed_float16" else parity.RELATIVE)


@pytest.mark.parametrize("name", RUNS)
def test_end_and_files(run, name):
    """Ended well, with as many files as one process leaves, of the same names (but for a pid in those of events)."""
    script, ranks, args = RUNS[name]
    together, alone = run(script, ranks, args), run(script, 0, ())
    assert together.status == alone.status == 0, shown(together)
    names = [sorted(name.partition(".tfevents.")[0] for name in one.files) for one in (together, alone)]
    assert names[0] == names[1]


def test_no_seed_and_what_is_refused(tmp_path):
    """Without a seed all ranks start with the same weights, and end with the same moving statistics."""
    together = parity.run(tmp_path / "run", parity.SCRIPTS / "tfkeras_ranks.py", ranks=2)
    first, second = together.results
    assert first == second
    refused = first["refused"]
    assert 'use "sum", which gives the same gradients' in refused["none_reduced"]
    assert "is not a mean over the rows of a batch" in refused["loss_of_a_sum"]
    assert "use stateful=False" in refused["state_of_each_row"]
    assert together.status == 0, shown(together)


def test_batchnorm_over_whole_batches(tmp_path):
    script = parity.SCRIPTS / "tfkeras_batchnorm.py"
    alone = parity.run(tmp_path / "alone", script)
    together = parity.run(tmp_path / "run", script, ranks=3, options=("--sync-batchnorm",))
    assert (alone.status, together.status) == (0, 0), alone.output + shown(together)
    for case, expected in alone.results[0].items():
        parity.assert_same(expected, [result[case] for result in together.results])
