"""The scripts of tests/scripts, case by case: on ranks they give what they give alone, and the work is split."""

import ast
import functools

import parity
import pytest

# Ranks and jit. The sequential run is without jit: it compiles fewer things, and its values are the same.
MODES = [(3, "off"), (2, "on")]
PYTHON_ONLY = ("fit_callbacks.py",)  # what they test is outside the step, so jit makes no difference
PATTERNS = ("fit_*.py", "inference.py", "loops.py")  # other tests run the others
SCRIPTS = [
    path.name for pattern in PATTERNS for path in sorted(parity.SCRIPTS.glob(pattern)) if "@case" in path.read_text()
]
RUNS = [(script, *mode) for script in SCRIPTS for mode in MODES if mode[1] == "off" or script not in PYTHON_ONLY]
TOLERANCES = {"mixed_float16": 1e-3}


def cases(script: str) -> list[str]:
    """Names of the functions under @case, without importing TensorFlow here."""
    tree = ast.parse((parity.SCRIPTS / script).read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """runs(script, ranks, jit): one run of all its cases, made when it is first asked for."""

    @functools.cache
    def run(script, ranks, jit):
        folder = tmp_path_factory.mktemp(script) / "run"
        return parity.run(folder, parity.SCRIPTS / script, "--jit", jit, ranks=ranks)

    return run


def shown(run) -> str:
    return run.output[-4000:] + run.logs[-4000:]


def results(run, case: str) -> list[dict]:
    """What each process has written about `case`; what the run printed, where one did not get that far."""
    assert all(case in result for result in run.results) and run.results, f"{case} is missing: {shown(run)}"
    return [result[case] for result in run.results]


@pytest.mark.parametrize(
    ("script", "ranks", "jit", "case"),
    [(*run, case) for run in RUNS for case in cases(run[0])],
)
@pytest.mark.timeout(700)
def test_case(runs, script, ranks, jit, case):
    expected, got = results(runs(script, 0, "off"), case), results(runs(script, ranks, jit), case)
    assert len(got) == ranks
    expected = expected[0]
    assert "error" not in expected, expected["error"]
    errors = [result["error"] for result in got if "error" in result]
    assert not errors, errors[0]
    if "skip" in expected:
        pytest.skip(expected["skip"])
    parity.assert_same(expected, got, TOLERANCES.get(case, parity.RELATIVE))


@pytest.mark.parametrize(("script", "ranks", "jit"), RUNS)
@pytest.mark.timeout(700)
def test_end_and_files(runs, script, ranks, jit):
    """Ended well, with as many files as one process leaves, of the same names (but for a pid in those of events)."""

    def names(run):
        assert run.status == 0, shown(run)
        return sorted(name.partition(".tfevents.")[0] for name in run.files)

    assert names(runs(script, ranks, jit)) == names(runs(script, 0, "off"))


@pytest.mark.timeout(700)
def test_slices_of_different_shapes_under_jit(runs, tmp_path):
    """On 3 ranks, 8 rows and 1, 3 and 2, 1 and none: XLA orders the operations of each shape in its own way."""
    some = ["numpy_arrays", "slices_of_8_and_1"]
    script = parity.SCRIPTS / "fit_inputs.py"
    together = parity.run(tmp_path / "run", script, "--jit", "on", "--only", *some, ranks=3)
    for case in some:
        parity.assert_same(results(runs(script.name, 0, "off"), case)[0], results(together, case))
    assert together.status == 0, shown(together)
