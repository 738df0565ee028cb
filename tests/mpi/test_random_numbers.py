"""Random numbers in training steps differ between ranks and from step to step, compiled or not; others agree."""

import parity
import pytest

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(700)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    run = parity.run(tmp_path_factory.mktemp("random") / "run", parity.SCRIPTS / "random_numbers.py", ranks=2)
    assert run.status == 0, run.output + run.logs
    return run.results


@pytest.mark.parametrize("mode", ["jit", "graph", "eager"])
def test_in_steps(ranks, mode):
    one, other = (rank[mode] for rank in ranks)
    assert one.keys() == other.keys() and len(one) == 14
    for kind in one:
        draws = [str(numbers) for numbers in one[kind] + other[kind]]
        assert len(draws) == 12 == len(set(draws)), f"{kind}: {draws}"


def test_outside_of_steps(ranks):
    one, other = (rank["outside"] for rank in ranks)
    assert one == other and len(one) == 11
