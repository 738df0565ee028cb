"""The layout on literal machines: numbers of ranks, shares of cores, GPUs."""

import json

import pytest

from matexrun.errors import UsageError
from matexrun.launch.config import resolve
from matexrun.launch.layout import check_gpus, divide_cores, layout, to_json
from matexrun.launch.machine import Node


def place(node, **given):
    return layout(resolve(given), node)


@pytest.mark.parametrize(
    "cores, count, each, expected",
    [
        (range(8), 1, None, [range(8)]),
        (range(8), 2, None, [range(4), range(4, 8)]),
        (range(8), 3, None, [range(2), range(2, 4), range(4, 6)]),  # equal shares; two cores stay free
        (range(8), 8, None, [[core] for core in range(8)]),
        (range(8), 2, 1, [[0], [1]]),
        (range(8), 2, 3, [range(3), range(3, 6)]),
        (range(2), 3, None, [range(2)] * 3),  # more ranks than cores: all share all
        ([5], 2, None, [[5], [5]]),
        ([0, 16, 1, 17], 2, None, [[0, 16], [1, 17]]),  # hyperthreads of a core stay in one share
        ([3, 7, 11], 3, 1, [[3], [7], [11]]),
    ],
)
def test_cores_are_divided_in_equal_disjoint_runs_or_shared(cores, count, each, expected):
    assert divide_cores(list(cores), count, each) == [tuple(share) for share in expected]


def test_cores_that_are_not_there_are_refused_with_both_numbers():
    with pytest.raises(UsageError, match="3 ranks x 4 cores are 12 cores, but this process may use 8"):
        divide_cores(range(8), 3, 4)


@pytest.mark.parametrize(
    "node, given, ranks",
    [
        (Node("a", tuple(range(8))), {}, 1),
        (Node("a", tuple(range(8)), domains=2), {}, 2),
        (Node("a", tuple(range(8)), domains=2, gpus=("0", "1", "2", "3")), {}, 4),
        (Node("a", tuple(range(8)), domains=2, gpus=("0",)), {}, 1),
        (Node("a", tuple(range(8)), domains=2, gpus=("0",)), {"ranks": 3}, 3),
        (Node("a", (0,)), {"ranks": 64}, 64),
    ],
)
def test_number_of_ranks(node, given, ranks):
    placements = place(node, **given)
    assert [placement.rank for placement in placements] == list(range(ranks))
    assert [placement.local_rank for placement in placements] == list(range(ranks))
    assert {placement.node for placement in placements} == {"a"}


def test_each_rank_has_the_gpu_of_its_local_rank_under_its_visible_name():
    node = Node("a", tuple(range(4)), gpus=("5", "GPU-8f1c", "MIG-22"))
    placements = place(node)
    assert [placement.gpu for placement in placements] == ["5", "GPU-8f1c", "MIG-22"]
    check_gpus(placements)


def test_more_ranks_than_gpus_is_told_with_both_numbers():
    placements = place(Node("a", tuple(range(4)), gpus=("0", "1")), ranks=3)
    with pytest.raises(UsageError, match="3 ranks, but 2 visible GPUs"):
        check_gpus(placements)


def test_without_gpus_nothing_is_shared():
    placements = place(Node("a", (0, 1)), ranks=3)
    assert [placement.gpu for placement in placements] == [None] * 3
    check_gpus(placements)


def test_serialised_layout_is_a_list_by_rank():
    placements = place(Node("a", (0, 1), gpus=("7", "8")), ranks=2)
    assert json.loads(to_json(placements)) == [
        {"node": "a", "local_rank": 0, "cores": [0], "gpu": "7"},
        {"node": "a", "local_rank": 1, "cores": [1], "gpu": "8"},
    ]


def test_ranks_read_the_layout_back_through_settings():
    from matexrun.settings import Settings

    placements = place(Node("a", (4, 5)), ranks=2)
    settings = Settings.from_env(Settings(job="j", size=2, seed=1, layout=to_json(placements)).to_env())
    assert settings.placement(1) == {"node": "a", "local_rank": 1, "cores": [5], "gpu": None}
