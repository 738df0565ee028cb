"""Scripts of TensorFlow 1 (tests/scripts/v1_*.py): on ranks they give what they give alone, and the work is split."""

import ast
import functools

import parity
import pytest

pytestmark = pytest.mark.matrix

# Starts and graph building take most of the time, so only the longest script runs on both numbers of ranks.
RUNS = [("v1_feeds.py", 2), ("v1_feeds.py", 3), ("v1_inputs.py", 3), ("v1_state.py", 2)]
if parity.EVERYTHING:
    RUNS += [("v1_inputs.py", 2), ("v1_state.py", 3)]


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
    [(*run, name) for run in RUNS for name in examples(run[0])],
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


@pytest.mark.parametrize(("script", "ranks"), RUNS)
@pytest.mark.timeout(700)
def test_end_and_files(runs, script, ranks):
    """Ended well, with as many files as one process leaves, of the same names (but for a pid in those of events)."""
    alone, together = runs(script, 0), runs(script, ranks)
    assert together.status == 0, together.output[-4000:] + together.logs[-4000:]
    names = [sorted(name.partition(".tfevents.")[0] for name in run.files) for run in (alone, together)]
    assert names[0] == names[1]


def test_what_cannot_be_kept_is_refused_and_all_start_alike(runs):
    done = runs("refused_v1.py", 2)
    assert done.status == 0, done.output[-4000:] + done.logs[-4000:]
    for result in done.results:
        assert result["rows_compared"].startswith("InexactError: the gradient of mlp/w1, mlp/b1, mlp/w2 is neither"), (
            result
        )
        assert result["fetched_beside"].startswith("InexactError: mul:0, fetched in a training run"), result
        assert result["in_parts"].startswith("ContractError: Session.partial_run"), result
        assert result["own_shape"].startswith("ContractError: the variables on rank 1 are not those on rank 0"), result
    (before, after), (other_before, other_after) = (result["own_start"] for result in done.results)
    assert before != other_before
    assert after == other_after
