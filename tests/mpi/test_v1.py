"""Scripts of TensorFlow 1 (tests/scripts/v1_*.py): on ranks they give what they give alone, and the work is split."""

import ast
import functools

import parity
import pytest

SCRIPTS = sorted(path.name for path in parity.SCRIPTS.glob("v1_*.py") if "@example" in path.read_text())


def examples(script: str) -> list[str]:
    """Names of the functions under @example, without importing TensorFlow here."""
    tree = ast.parse((parity.SCRIPTS / script).read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """runs(script, ranks): one run of all its examples, made when it is first asked for."""

    @functools.cache
    def run(script, ranks):
        return parity.run(tmp_path_factory.mktemp(script) / "run", parity.SCRIPTS / script, ranks=ranks)

    return run


@pytest.mark.parametrize(
    ("script", "ranks", "name"),
    [(script, ranks, name) for script in SCRIPTS for ranks in (2, 3) for name in examples(script)],
)
@pytest.mark.timeout(700)
def test_example(runs, script, ranks, name):
    alone, together = runs(script, 0), runs(script, ranks)
    shown = together.output[-4000:] + together.logs[-4000:]
    assert len(together.results) == ranks and all(name in result for result in together.results), shown
    expected, got = alone.results[0][name], [result[name] for result in together.results]
    assert "error" not in expected, expected["error"]
    errors = [result["error"] for result in got if "error" in result]
    assert not errors, errors[0]
    parity.assert_same(expected, got)


@pytest.mark.parametrize(("script", "ranks"), [(script, ranks) for script in SCRIPTS for ranks in (2, 3)])
@pytest.mark.timeout(700)
def test_end_and_files(runs, script, ranks):
    """Ended well, with as many files as one process leaves, of the same names (but for a pid in those of events)."""
    alone, together = runs(script, 0), runs(script, ranks)
    assert together.status == 0, together.output[-4000:] + together.logs[-4000:]
    names = [sorted(name.partition(".tfevents.")[0] for name in run.files) for run in (alone, together)]
    assert names[0] == names[1]
