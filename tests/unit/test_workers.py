"""The workers of a trial with nodes that behave, fail, die and fall silent."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from testbed.errors import CommandTimeout, Unreachable, WorkerFailed
from testbed.experiment.workers import Workers

SOON_S = 5.0


class FakeProcess:
    """A program on a node: it says what it is told to, and ends when its channel is closed."""

    def __init__(self, host: str, on_log: Callable[[bytes], None]) -> None:
        self.host = host
        self.log = on_log
        self.heard: list[str] = []
        self.closed = False
        self._said: queue.Queue[str | None] = queue.Queue()
        self._ended = threading.Event()
        self._status = -1

    def says(self, event: str, **values: Any) -> None:
        self._said.put(json.dumps({"event": event, **values}))

    def prints(self, line: str) -> None:
        self._said.put(line)

    def ends(self, status: int) -> None:
        if not self._ended.is_set():
            self._status = status
            self._ended.set()
            self._said.put(None)

    def write_line(self, line: str) -> None:
        if self._ended.is_set():
            raise Unreachable(f"{self.host}: the connection broke")
        self.heard.append(line)

    def lines(self) -> Iterator[str]:
        while (line := self._said.get()) is not None:
            yield line

    def exit_status(self, timeout_s: float) -> int:
        if not self._ended.wait(timeout_s):
            raise CommandTimeout(f"{self.host}: the program did not end in {timeout_s:g} s")
        return self._status

    def close(self) -> None:
        self.closed = True
        self.ends(-1)


@dataclass
class FakeNode:
    """A machine on which programs can be started; ``broken`` ones cannot be reached."""

    name: str
    broken: bool = False
    started: list[FakeProcess] = field(default_factory=list)
    told: list[Any] = field(default_factory=list)

    def start(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: PurePosixPath,
        on_log: Callable[[bytes], None],
    ) -> FakeProcess:
        if self.broken:
            raise Unreachable(f"{self.name}: the SSH connection is gone")
        self.told.append((tuple(argv), dict(environment), folder))
        process = FakeProcess(self.name, on_log)
        self.started.append(process)
        return process


@pytest.fixture
def nodes() -> list[FakeNode]:
    return [FakeNode("n1"), FakeNode("n2"), FakeNode("n3")]


def started(nodes: list[FakeNode], logs: Path) -> Workers:
    return Workers(
        nodes,  # type: ignore[arg-type]
        ("python", "-m", "workload"),
        environment={"A": "1"},
        folder=PurePosixPath("/opt/testbed"),
        logs=logs,
    )


def test_every_node_starts_the_same_program_and_all_are_waited_for(
    nodes: list[FakeNode], tmp_path: Path
) -> None:
    with started(nodes, tmp_path) as workers:
        for rank, node in enumerate(nodes):
            node.started[0].says("ready", parameters=rank)
        said = workers.wait_for("ready", stall_s=SOON_S)
        assert said == {f"n{rank + 1}": {"parameters": rank} for rank in range(3)}
        workers.say("go")
        assert [node.started[0].heard for node in nodes] == [["go"]] * 3
    command = (("python", "-m", "workload"), {"A": "1"}, PurePosixPath("/opt/testbed"))
    assert [node.told for node in nodes] == [[command]] * 3
    assert all(node.started[0].closed for node in nodes)


def test_events_that_come_early_are_kept(nodes: list[FakeNode], tmp_path: Path) -> None:
    with started(nodes, tmp_path) as workers:
        heard = []
        for node in nodes:
            for event in ("ready", "trained", "done"):
                node.started[0].says(event)
            node.started[0].ends(0)
        workers.wait_for("ready", stall_s=SOON_S, on_event=lambda event: heard.append(event.name))
        assert len(workers.wait_for("trained", stall_s=SOON_S)) == 3
        assert len(workers.wait_for("done", stall_s=SOON_S)) == 3
        workers.wait_for_end(timeout_s=SOON_S)
        assert "ready" in heard


def test_a_worker_that_ends_early_is_named_with_its_status_and_last_words(
    nodes: list[FakeNode], tmp_path: Path
) -> None:
    with started(nodes, tmp_path) as workers:
        nodes[0].started[0].says("ready")
        bad = nodes[1].started[0]
        for number in range(40):
            bad.log(f"line {number}\n".encode())
        bad.ends(3)
        with pytest.raises(WorkerFailed) as failed:
            workers.wait_for("ready", stall_s=SOON_S)
    assert failed.value.node == "n2"
    message = str(failed.value)
    assert message.startswith("n2: its worker ended with status 3 before 'ready'; its log ends:")
    assert "line 39" in message
    assert "line 28" in message
    assert "line 27" not in message
    assert all(node.started[0].closed for node in nodes)


def test_a_worker_that_was_killed_is_said_to_be(nodes: list[FakeNode], tmp_path: Path) -> None:
    with started(nodes, tmp_path) as workers:
        nodes[2].started[0].ends(-1)
        with pytest.raises(
            WorkerFailed, match=r"n3: its worker was killed or cut off .*log is emp"
        ):
            workers.wait_for("ready", stall_s=SOON_S)


def test_the_first_that_fails_is_named_when_others_fail_after_it(
    nodes: list[FakeNode], tmp_path: Path
) -> None:
    with started(nodes, tmp_path) as workers:
        nodes[1].started[0].ends(9)
        # Its peers fail because of it, once it has been heard to end.
        deadline = time.monotonic() + SOON_S
        while workers._events.empty() and time.monotonic() < deadline:
            time.sleep(0.001)
        for node in (nodes[0], nodes[2]):
            node.started[0].ends(1)
        with pytest.raises(WorkerFailed, match="n2: its worker ended with status 9"):
            workers.wait_for("ready", stall_s=SOON_S)


def test_silence_is_a_failure_of_the_silent(nodes: list[FakeNode], tmp_path: Path) -> None:
    with started(nodes, tmp_path) as workers:
        for node in nodes[:2]:
            node.started[0].says("ready")
        nodes[2].started[0].log(b"waiting for a lock\n")
        with pytest.raises(WorkerFailed, match=r"n3: no 'ready' .* 0\.2 s.*\n.*a lock"):
            workers.wait_for("ready", stall_s=0.2)


def test_a_word_from_anybody_is_a_sign_of_life(nodes: list[FakeNode], tmp_path: Path) -> None:
    with started(nodes, tmp_path) as workers:
        one = nodes[0].started[0]

        def talk() -> None:
            for step in range(8):
                time.sleep(0.1)
                one.says("progress", step=step)
            for node in nodes:
                node.started[0].says("trained")

        talking = threading.Thread(target=talk)
        talking.start()
        assert len(workers.wait_for("trained", stall_s=0.5)) == 3
        talking.join(SOON_S)


def test_a_worker_that_ends_badly_after_its_last_event_is_named(
    nodes: list[FakeNode], tmp_path: Path
) -> None:
    with started(nodes, tmp_path) as workers:
        for node in nodes:
            node.started[0].says("done")
            node.started[0].ends(1 if node.name == "n2" else 0)
        workers.wait_for("done", stall_s=SOON_S)
        with pytest.raises(WorkerFailed, match="n2: ended with status 1"):
            workers.wait_for_end(timeout_s=SOON_S)


def test_a_worker_that_does_not_end_is_named(nodes: list[FakeNode], tmp_path: Path) -> None:
    with started(nodes, tmp_path) as workers:
        for node in nodes:
            node.started[0].says("done")
        workers.wait_for("done", stall_s=SOON_S)
        nodes[0].started[0].ends(0)
        with pytest.raises(WorkerFailed, match=r"^n2: .*did not end in 0\.1 s"):
            workers.wait_for_end(timeout_s=0.1)


def test_what_is_no_event_is_log(nodes: list[FakeNode], tmp_path: Path) -> None:
    with started(nodes[:1], tmp_path) as workers:
        process = nodes[0].started[0]
        lines = ["Epoch 1/3", "{not json", "[1, 2]", '"event"', '{"event": 5}', '{"step": 1}']
        for line in lines:
            process.prints(line)
        process.log(b"\xff\xfe from stderr\n")
        process.says("ready")
        assert workers.wait_for("ready", stall_s=SOON_S) == {"n1": {}}
    logged = (tmp_path / "n1.log").read_bytes()
    for line in lines:
        assert line.encode() in logged
    assert b"\xff\xfe from stderr" in logged
    assert b"ready" not in logged


def test_a_node_that_cannot_start_ends_those_that_did(
    nodes: list[FakeNode], tmp_path: Path
) -> None:
    nodes[1].broken = True
    with pytest.raises(Unreachable, match="n2"):
        started(nodes, tmp_path)
    assert all(node.started[0].closed for node in (nodes[0], nodes[2]))


def test_saying_a_word_to_the_dead_is_unreachable(nodes: list[FakeNode], tmp_path: Path) -> None:
    with started(nodes, tmp_path) as workers:
        nodes[1].started[0].ends(-1)
        with pytest.raises(Unreachable, match="n2"):
            workers.say("go")


def test_closing_twice_does_no_harm_and_no_thread_stays(
    nodes: list[FakeNode], tmp_path: Path
) -> None:
    before = threading.active_count()
    workers = started(nodes, tmp_path)
    workers.close()
    workers.close()
    assert threading.active_count() == before
