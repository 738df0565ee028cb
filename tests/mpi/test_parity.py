"""The scripts of tests/scripts, case by case: on ranks they give what they give alone, and the work is split."""

import ast
import functools
from concurrent.futures import ThreadPoolExecutor

import parity
import pytest

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(700)]

# Each script runs on 3 ranks, of which a batch leaves one without rows, and, compiled by XLA, on 2. Compilation takes
# its time, and so only those cases are compiled in which it meets something new:
WITH_JIT = {
    "fit_callbacks.py": [],  # what happens there is outside the step
    "fit_inputs.py": ["slices_of_many_shapes", "generator_with_weights"],  # shapes that change
    "fit_losses.py": ["reduction_sum_weighted", "mean_with_sample_weight", "ignored_class", "masked_lstm"],
    "fit_metrics.py": ["binary_counts", "own_that_add_up", "own_that_does_not_add_up"],
    "fit_optimizers.py": [
        "gradient_accumulation",
        "mixed_float16",
        "loss_scale_that_overflows_on_one_rank",
        "global_clipnorm",
        "adamw_with_schedule_and_average",
    ],
    "fit_options.py": [
        "steps_per_execution",
        "custom_train_step",
        "layer_with_a_counter",
        "batch_normalization_stays_finite",
    ],
    "inference.py": ["evaluate_predict_and_call", "methods_for_one_batch"],
    "loops.py": None,  # all of them
}
TOLERANCES = {"mixed_float16": 1e-3}


def cases(script: str) -> list[str]:
    """Names of the functions under @case, without importing TensorFlow here."""
    tree = ast.parse((parity.SCRIPTS / script).read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]


def with_jit(script: str) -> list[str]:
    return cases(script) if WITH_JIT[script] is None else WITH_JIT[script]


RUNS = [(script, 3, "off") for script in WITH_JIT] + [(script, 2, "on") for script in WITH_JIT if with_jit(script)]
if parity.EVERYTHING:
    RUNS += [(script, 2, "off") for script in WITH_JIT]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """runs(script, ranks, jit): one run of its cases, made when it is first asked for.

    The sequential run is without jit: it compiles fewer things, and its values are the same. It goes on beside the
    first one on ranks, which alone would not keep all cores busy.
    """

    @functools.cache
    def start(script, ranks, jit):
        folder = tmp_path_factory.mktemp(script) / "run"
        only = ["--only", *with_jit(script)] if jit == "on" else []
        return pool.submit(parity.run, folder, parity.SCRIPTS / script, "--jit", jit, *only, ranks=ranks)

    def run(script, ranks, jit):
        start(script, 0, "off")
        return start(script, ranks, jit).result()

    with ThreadPoolExecutor() as pool:
        yield run


def shown(run) -> str:
    return run.output[-4000:] + run.logs[-4000:]


def results(run, case: str) -> list[dict]:
    """What each process has written about `case`; what the run printed, where one did not get that far."""
    assert all(case in result for result in run.results) and run.results, f"{case} is missing: {shown(run)}"
    return [result[case] for result in run.results]


@pytest.mark.parametrize(
    ("script", "ranks", "jit", "case"),
    [(*run, case) for run in RUNS for case in (with_jit if run[2] == "on" else cases)(run[0])],
)
def test_case(runs, script, ranks, jit, case):
    got, expected = results(runs(script, ranks, jit), case), results(runs(script, 0, "off"), case)
    assert len(got) == ranks
    expected = expected[0]
    assert "error" not in expected, expected["error"]
    errors = [result["error"] for result in got if "error" in result]
    assert not errors, errors[0]
    if "skip" in expected:
        pytest.skip(expected["skip"])
    parity.assert_same(expected, got, TOLERANCES.get(case, parity.RELATIVE))


@pytest.mark.parametrize(("script", "ranks", "jit"), RUNS)
def test_end_and_files(runs, script, ranks, jit):
    """Ended well, with as many files as one process leaves, of the same names (but for a pid in those of events)."""

    def names(run):
        assert run.status == 0, shown(run)
        return sorted(name.partition(".tfevents.")[0] for name in run.files)

    assert names(runs(script, ranks, jit)) == names(runs(script, 0, "off"))


def test_slices_of_different_shapes_under_jit(runs, tmp_path):
    """On 3 ranks: XLA orders the operations of each shape in its own way."""
    case, script = "slices_of_many_shapes", parity.SCRIPTS / "fit_inputs.py"
    together = parity.run(tmp_path / "run", script, "--jit", "on", "--only", case, ranks=3)
    assert together.status == 0, shown(together)
    parity.assert_same(results(runs(script.name, 0, "off"), case)[0], results(together, case))
