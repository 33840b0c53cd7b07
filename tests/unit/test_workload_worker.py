from __future__ import annotations

import io
import json
import os
import threading
from pathlib import Path

import pytest

from testbed.workload import __main__ as worker
from testbed.workload.counters import Meter, lan_counters, peak_memory_bytes, versions
from testbed.workload.protocol import Channel
from testbed.workload.script import parse_record

NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo:     100       2    0    0    0     0          0         0      100       2    0    0
  eth1:12345678    9000    0    0    0     0          0         0 87654321    8000    0    0
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "dev").write_text(NET_DEV)
    return tmp_path


def test_counters_are_those_of_the_lan_device(proc: Path) -> None:
    assert lan_counters("eth1", proc=proc) == {
        "bytes_received": 12345678,
        "packets_received": 9000,
        "bytes_sent": 87654321,
        "packets_sent": 8000,
    }


def test_a_device_that_is_not_there_counts_nothing(proc: Path) -> None:
    assert lan_counters("eth", proc=proc) == {}
    assert lan_counters("", proc=proc) == {}


def test_a_meter_adds_up_only_the_stretches_it_runs() -> None:
    cpu = iter([10.0, 11.0, 50.0, 50.5])
    meter = Meter("lo", lambda: next(cpu))
    for _ in range(2):
        meter.start()
        meter.stop()
    assert meter.cpu_s == 1.5
    assert meter.wall_s > 0
    assert set(meter.lan) == {"bytes_received", "packets_received", "bytes_sent", "packets_sent"}


def test_the_peak_is_at_least_what_python_takes() -> None:
    assert peak_memory_bytes() > 5_000_000


def test_versions_are_known_without_importing_tensorflow() -> None:
    assert {"python", "tensorflow", "keras", "numpy"} <= set(versions())


class Line:
    """A channel whose ends the test holds."""

    def __init__(self) -> None:
        reader, self.stdin = os.pipe()
        self.events = io.StringIO()
        self.ended = threading.Event()
        self.channel = Channel(events=self.events, commands_fd=reader, on_end=self.ended.set)
        self.channel.listen()

    def said(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.events.getvalue().splitlines()]


def test_go_is_heard_even_in_pieces() -> None:
    line = Line()
    os.write(line.stdin, b"g")
    os.write(line.stdin, b"o\n")
    line.channel.wait_for_go()
    os.close(line.stdin)
    assert line.ended.wait(5)


def test_the_end_of_stdin_is_noticed_before_and_after_go() -> None:
    for words in (b"", b"go\n"):
        line = Line()
        os.write(line.stdin, words)
        os.close(line.stdin)
        assert line.ended.wait(5)


def test_after_done_the_end_of_stdin_is_no_fault() -> None:
    line = Line()
    line.channel.done()
    os.close(line.stdin)
    assert not line.ended.wait(0.2)
    assert line.said() == [{"event": "done"}]


def test_progress_comes_at_most_once_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line()
    for now in (100.0, 100.4, 100.99, 101.0, 103.0):
        monkeypatch.setattr("testbed.workload.protocol.time.monotonic", lambda now=now: now)
        line.channel.progress(step=int(now * 100), steps=5)
    os.close(line.stdin)
    assert [event["step"] for event in line.said()] == [10000, 10100, 10300]


@pytest.mark.parametrize(
    ("text", "record"),
    [
        (b'{"step": 1, "loss": 0.5}\n', {"step": 1, "loss": 0.5}),
        (b'  {"any": "key"}  \n', {"any": "key"}),
        (b"{not json}\n", None),
        (b"[1, 2]\n", None),
        (b"12\n", None),
        (b"step 1 loss 0.5\n", None),
        (b'{"a": "\xff"}\n', None),
    ],
)
def test_a_record_is_a_line_with_a_json_object(
    text: bytes, record: dict[str, object] | None
) -> None:
    assert parse_record(text) == record


def test_misuse_is_told_before_anything_is_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert worker.main([]) == 2
    bad = tmp_path / "job"
    bad.write_text('{"format":1,"workload":"imagenet"}')
    assert worker.main([str(bad), str(bad), str(tmp_path / "result")]) == 2
    assert "expected one of fashion-mnist" in capsys.readouterr().err
    assert worker.main([str(tmp_path / "none"), str(bad), "x"]) == 2
