"""The scripts of tests/scripts, case by case: on ranks they give what they give alone, and the work is split."""

import ast
import functools

import parity
import pytest

# 2 and 3 ranks, jit off and on. The sequential run is without jit: it compiles fewer things, and the values are equal.
MODES = [(2, "off"), (3, "on")]
SCRIPTS = sorted(path.name for path in parity.SCRIPTS.glob("*.py") if "@case" in path.read_text())
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


@pytest.mark.parametrize(
    ("script", "ranks", "jit", "case"),
    [(script, ranks, jit, case) for script in SCRIPTS for ranks, jit in MODES for case in cases(script)],
)
@pytest.mark.timeout(400)
def test_case(runs, script, ranks, jit, case):
    alone, together = runs(script, 0, "off"), runs(script, ranks, jit)
    assert alone.status == 0, alone.output
    assert together.status == 0, together.output[-5000:]
    assert len(together.results) == ranks
    expected, got = alone.results[0][case], [result[case] for result in together.results]
    assert "error" not in expected, expected["error"]
    errors = [result["error"] for result in got if "error" in result]
    assert not errors, errors[0]
    if "skip" in expected:
        pytest.skip(expected["skip"])
    parity.assert_same(expected, got, TOLERANCES.get(case, parity.RELATIVE))


@pytest.mark.parametrize(("script", "ranks", "jit"), [(script, *mode) for script in SCRIPTS for mode in MODES])
@pytest.mark.timeout(400)
def test_files(runs, script, ranks, jit):
    """As many files as one process leaves, under the same names (the name of an events file has a time and a pid)."""

    def names(run):
        return sorted(name.partition(".tfevents.")[0] for name in run.files)

    assert names(runs(script, ranks, jit)) == names(runs(script, 0, "off"))
