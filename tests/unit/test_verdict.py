"""Which rank began it, on literal events."""

import pytest

from matexrun.launch.events import Event
from matexrun.launch.verdict import DESERTED_AFTER, Ranks, problem

ALL = {"activated", "claimed", "leaving", "finished"}


@pytest.mark.parametrize(
    ("code", "reported", "expected"),
    [
        (0, ALL, None),
        (0, {"activated"}, None),  # never imported TensorFlow
        (0, {"activated", "claimed"}, "ended with status 0 in the middle of the job"),
        (0, {"activated", "claimed", "leaving"}, "ended with status 0 in the middle of the job"),
        (0, set(), "ran without matexrun in it"),
        (3, ALL, "failed with status 3"),
        (3, set(), "failed with status 3"),
        (-9, ALL, "was killed by SIGKILL (status 137)"),
        (-40, ALL, "was killed by signal 40 (status 168)"),
    ],
)
def test_what_is_wrong_with_the_end_of_a_rank(code, reported, expected):
    found = problem(code, reported)
    assert found is None if expected is None else found.startswith(expected)


def ranks(size, *events):
    """Each event: (time, rank, name, fields); `now` is its time."""
    known = Ranks(size)
    for moment, rank, name, fields in events:
        known.see(Event(name, rank, "host", moment, fields), now=moment)
    return known


def started(rank):
    return 0.0, rank, "started", {"pid": 100 + rank, "worker": 200 + rank}


def exited(moment, rank, status, asked=False, problem="failed"):
    return moment, rank, "exited", {"status": status, "problem": problem if status else None, "asked": asked}


def test_the_earliest_failure_is_the_cause_in_whatever_order_it_becomes_known():
    failure = ranks(3, exited(2.0, 0, 1), exited(1.0, 2, 3), exited(3.0, 1, 1)).failure()
    assert (failure.rank, failure.status) == (2, 3)


def test_a_consequence_is_not_the_cause_even_if_it_is_known_first():
    known = ranks(3, exited(1.0, 0, 143, asked=True), exited(1.1, 1, 1, asked=True), exited(1.2, 2, 3))
    assert known.failure().rank == 2


def test_of_consequences_one_that_did_not_die_of_the_signal_comes_first():
    assert ranks(3, exited(1.0, 0, 143, asked=True), exited(1.1, 1, 5, asked=True)).failure().rank == 1


def test_a_rank_that_was_killed_by_somebody_else_is_a_cause():
    failure = ranks(2, exited(1.0, 1, 137), exited(1.1, 0, 143, asked=True)).failure()
    assert (failure.rank, failure.consequence) == (1, 0)


def test_a_failure_carries_the_traceback_of_its_rank():
    known = ranks(
        2, (1.0, 1, "failed", {"traceback": "one"}), (1.1, 0, "failed", {"traceback": "zero"}), exited(1.2, 1, 1)
    )
    assert known.failure().traceback == "one"
    assert str(known.failure()) == "rank 1 on host failed"


def test_no_failure():
    known = ranks(2, started(0), started(1), exited(1.0, 0, 0))
    assert known.failure() is None
    assert not known.all_well()
    assert known.running() == [1]
    assert known.workers("host") == {1: 201}
    assert known.workers("elsewhere") == {}
    known.see(Event("exited", 1, "host", 2.0, {"status": 0, "problem": None, "asked": False}), 2.0)
    assert known.all_well()


WAITING = (1.0, 0, "waiting", {"what": "barrier"})
LEFT = (1.5, 1, "leaving", {})


def test_a_rank_that_left_while_another_waits_for_it():
    known = ranks(2, started(0), started(1), WAITING, LEFT)
    assert known.deserted(1.5 + DESERTED_AFTER) is None
    sentence = known.deserted(1.6 + DESERTED_AFTER)
    assert "rank 1 on host has left the script, while rank 0 on host still waits for it in barrier" in sentence


def test_a_rank_that_ended_without_ever_joining_has_left_too():
    assert ranks(2, started(0), started(1), WAITING, exited(1.5, 1, 0)).deserted(9.0)


@pytest.mark.parametrize(
    "events",
    [
        [WAITING],
        [LEFT],
        [WAITING, (1.0, 1, "waiting", {"what": "barrier"})],  # all wait, for a slow network say
        [WAITING, LEFT, (1.6, 0, "resumed", {})],
        [WAITING, (1.2, 0, "resumed", {}), LEFT, (1.7, 0, "leaving", {})],
        [LEFT, WAITING, (1.6, 0, "leaving", {})],
    ],
)
def test_nobody_is_deserted(events):
    assert ranks(2, started(0), started(1), *events).deserted(99.0) is None


def test_ranks_are_stuck_when_those_that_run_wait_for_one_that_ended():
    assert not ranks(2, started(0), started(1), WAITING).stuck()
    assert not ranks(2, started(0), started(1), exited(2.0, 1, 143, asked=True)).stuck()
    assert ranks(2, started(0), started(1), WAITING, exited(2.0, 1, 143, asked=True)).stuck()
