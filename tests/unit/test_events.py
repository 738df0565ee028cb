"""Events on their way from workers to the launcher."""

import json
import os
import socket
import stat
import time

import pytest

from matexrun.launch.events import Receiver, Sender


def test_events_arrive_once_by_time_with_rank_and_host(tmp_path):
    receiver = Receiver(str(tmp_path))
    one, zero = Sender(str(tmp_path), 1), Sender(str(tmp_path), 0)
    before = time.time()
    one.send("started", pid=7)
    zero.send("activated")
    one.send("failed", traceback="line 1\nline 2 é")
    events = receiver.poll()
    assert [(event.rank, event.name, event.fields) for event in events] == [
        (1, "started", {"pid": 7}),
        (0, "activated", {}),
        (1, "failed", {"traceback": "line 1\nline 2 é"}),
    ]
    assert {event.host for event in events} == {socket.gethostname()}
    assert before <= events[0].time <= events[1].time <= events[2].time <= time.time()
    assert receiver.poll() == []
    zero.send("resumed")
    assert [event.name for event in receiver.poll()] == ["resumed"]


def test_half_a_line_waits_for_its_rest(tmp_path):
    receiver = Receiver(str(tmp_path))
    Sender(str(tmp_path), 0).send("activated")
    file = tmp_path / "rank-0.events"
    line = file.read_bytes()
    file.write_bytes(line + line[:20])
    assert len(receiver.poll()) == 1
    assert receiver.poll() == []
    file.write_bytes(line + line)
    assert len(receiver.poll()) == 1


def test_a_report_may_have_fields_of_any_name(tmp_path):
    Sender(str(tmp_path), 0).send("warning", **{"name": "x", "rank": 9, "self": 1})
    (event,) = Receiver(str(tmp_path)).poll()
    assert (event.name, event.rank, event.fields) == ("warning", 0, {"name": "x", "rank": 9, "self": 1})


def test_files_are_private_and_never_links(tmp_path):
    Sender(str(tmp_path), 0)
    assert stat.S_IMODE((tmp_path / "rank-0.events").stat().st_mode) == 0o600
    (tmp_path / "rank-1.events").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        Sender(str(tmp_path), 1)


def test_without_the_folder_of_the_job(tmp_path):
    with pytest.raises(OSError):
        Sender(str(tmp_path / "gone"), 0)


def test_several_writers_share_a_file(tmp_path):
    """A mpiexec that does not belong to the MPI library makes every process rank 0."""
    for _ in range(3):
        if os.fork() == 0:
            sender = Sender(str(tmp_path), 0)
            for _ in range(100):
                sender.send("exited", status=1, problem="x" * 300, asked=False)
            os._exit(0)
    for _ in range(3):
        assert os.wait()[1] == 0
    lines = (tmp_path / "rank-0.events").read_text().splitlines()
    assert len(lines) == 300
    assert {json.loads(line)["name"] for line in lines} == {"exited"}
