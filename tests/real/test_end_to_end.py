"""Whole trials on real nodes over verified links, and a sweep that is interrupted and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clusters import PROGRAMS
from machine import State, assert_as_before, wait_until

from testbed.experiment.payload import load_script
from testbed.experiment.preflight import check
from testbed.experiment.runner import run_trial
from testbed.experiment.trial import Trial
from testbed.network.shape import apply_shape
from testbed.provision.cluster import Cluster, LiveNode
from testbed.scenario.model import Shape
from testbed.workload.data.fetch import DEBIAN_FOLDER

pytestmark = [pytest.mark.root, pytest.mark.needs(*PROGRAMS)]
DATA = pytest.mark.needs(str(DEBIAN_FOLDER))

FIXED_KEYS = {
    *("format", "trial_id", "attempt", "status", "reasons", "mode", "backend", "nodes", "rate_bps"),
    *("strategy", "workload", "model", "global_batch_size", "seed", "train_time_s", "step_times_s"),
    *("samples_total", "final_loss", "final_accuracy", "verdict", "overhead_s", "bytes_sent"),
    *("bytes_received", "manifest"),
}
PHASES = {
    *("provision", "shape", "verify_before", "push", "start", "evaluate", "verify_after"),
    *("collect", "teardown"),
}
LENET_BYTES = 61_706 * 4
FAST = Shape(rate_bps=100_000_000)
STEPS = 6


def trial(**changes: Any) -> Trial:
    # Small budgets: this machine may be busy with other things, and idle time is a gate.
    settings: dict[str, Any] = {"nodes": 2, "shape": FAST, "cpu_cores": 0.3, "steps": STEPS}
    return Trial(**settings | changes)


def silence(_: str) -> None:
    pass


def run_until(
    enough: Callable[[dict[str, Any]], bool],
    one: Trial,
    logs: Path,
    say: Callable[[str], None] = silence,
) -> dict[str, Any]:
    """Run a trial; again if others kept this machine so busy that its links did not pass."""
    for attempt in (1, 2, 3):
        record = run_trial(one, attempt=attempt, logs=logs, say=say)
        if enough(record):
            break
    return record


def trained(record: dict[str, Any]) -> bool:
    return "train_time_s" in record


def worker_of(node: str) -> int | None:
    """Return the process that trains on a node of these tests, as the host numbers it."""
    mark = Path(os.environ["TESTBED_STATE"]).name.encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            mounts = (process / "mountinfo").read_bytes()
        except OSError:
            continue
        if b"\0workload\0" in command and mark in mounts and f"/{node}/rootfs".encode() in mounts:
            return int(process.name)
    return None


@pytest.mark.training
@DATA
def test_a_trial_trains_over_verified_links_and_its_record_is_whole(
    tmp_path: Path, before: State
) -> None:
    one = trial()
    check([one], silence)
    heard: list[str] = []
    record = run_until(
        lambda record: record["status"] != "invalid", one, tmp_path / "logs", heard.append
    )
    assert (record["status"], record["reasons"]) == ("ok", [])
    assert record.keys() >= FIXED_KEYS
    assert record["overhead_s"].keys() >= PHASES
    assert record["verdict"]["status"] == "pass"
    assert {link["when"] for link in record["verdict"]["links"]} == {"before", "after"}
    assert {q["kind"] for q in record["verdict"]["qdiscs"]} == {"tbf"}
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert "null" not in json.dumps(record)

    assert len(record["step_times_s"]) == len(record["losses"]) == STEPS
    assert record["samples_total"] == STEPS * one.global_batch_size
    assert record["losses"][-1] < record["losses"][0]
    assert record["train_time_s"] >= 0.9 * sum(record["step_times_s"])
    assert record["bound"]["communication_s"] <= min(record["step_times_s"]) * 1.01

    # The ring sends 2(N-1)/N of the gradients in each step: all of them once, for two nodes.
    expected = LENET_BYTES * STEPS
    for direction in ("bytes_sent", "bytes_received"):
        assert record[direction].keys() == {"n1", "n2"}
        for count in record[direction].values():
            assert expected < count < 1.3 * expected
    used = record["resources"]["nodes"]["n1"]
    assert used["throttled_periods"] > 0
    assert used["cpu_s"] < 0.35 * record["train_time_s"] + 0.1
    assert used["peak_memory_bytes"] > 200e6
    assert [word for word in heard if word in ("push", "start workers", "train")][-3:] == [
        *("push", "start workers", "train")
    ]
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"n1.log", "n2.log"}
    assert_as_before(before)


@pytest.mark.training
@DATA
def test_a_worker_killed_in_training_is_named_with_its_log_at_once(
    tmp_path: Path, before: State
) -> None:
    killed_at: list[float] = []

    def kill_the_second(said: str) -> None:
        if said.startswith("train: step") and not killed_at:
            worker = worker_of("n2")
            assert worker is not None
            os.kill(worker, signal.SIGKILL)
            killed_at.append(time.monotonic())

    long = trial(backend="netns", switch="virtual_bridge", steps=5000)
    record = run_until(lambda _: bool(killed_at), long, tmp_path, kill_the_second)
    assert time.monotonic() - killed_at[0] < 15
    assert record["status"] == "failed"
    [reason] = record["reasons"]
    assert reason.startswith("n2: its worker was killed")
    assert "its log" in reason
    assert record["verdict"]["status"] == "pass"
    assert "train_time_s" not in record
    assert_as_before(before)


def without_a_queue(patch: pytest.MonkeyPatch) -> None:
    shape = Cluster.shape

    def shape_badly(cluster: Cluster) -> None:
        shape(cluster)
        end, _ = cluster.links()[0].ends()[0]
        apply_shape(end, Shape())

    patch.setattr(Cluster, "shape", shape_badly)


def test_a_link_without_its_queue_makes_the_trial_invalid_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: State
) -> None:
    without_a_queue(monkeypatch)
    heard: list[str] = []
    record = run_trial(trial(), attempt=1, logs=tmp_path, say=heard.append)
    assert record["status"] == "invalid"
    assert any("eth1 of n1 has no qdisc" in reason for reason in record["reasons"])
    assert record["verdict"]["status"] == "fail"
    assert "train" not in heard
    assert_as_before(before)


def script_trial(folder: Path, text: str, **changes: Any) -> Trial:
    (folder / "mine").mkdir()
    file = folder / "mine" / "own training.py"
    file.write_text(text)
    script = load_script(file, file.parent, ("--words", "a b"))
    return trial(script=script, **changes)


def test_a_link_changed_in_training_makes_the_trial_invalid_and_its_times_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: State
) -> None:
    nodes: list[LiveNode] = []
    links = Cluster.links

    def links_seen(cluster: Cluster) -> Any:
        nodes[:] = cluster.nodes
        return links(cluster)

    def loosen(said: str) -> None:
        if said == "train":
            nodes[1].inside.run(("tc", "qdisc", "del", "dev", "eth1", "root"))

    monkeypatch.setattr(Cluster, "links", links_seen)
    one = script_trial(
        tmp_path,
        "import json, os, sys, time\n"
        "time.sleep(1)\n"
        "print(json.dumps({'step': 1, 'rank': os.environ['RANK'], 'words': sys.argv[2]}))\n",
    )
    record = run_until(trained, one, tmp_path / "logs", loosen)
    assert record["status"] == "invalid"
    assert any("eth1 of n2 has no qdisc" in reason for reason in record["reasons"])
    assert record["train_time_s"] >= 1
    for rank, node in enumerate(("n1", "n2")):
        [told] = record["script_records"][node]
        assert (told["step"], told["rank"], told["words"]) == (1, str(rank), "a b")
    assert_as_before(before)


def test_a_script_that_fails_is_told_with_its_status_and_last_words(
    tmp_path: Path, before: State
) -> None:
    one = script_trial(
        tmp_path, "import sys\nsys.exit('my own last words')\n", nodes=1, shape=Shape()
    )
    record = run_trial(one, attempt=1, logs=tmp_path / "logs", say=silence)
    assert record["status"] == "failed"
    [reason] = record["reasons"]
    assert reason.startswith("n1: ")
    assert "ended with status" in reason
    assert "my own last words" in reason
    assert_as_before(before)


SWEEP = """\
format: 1
name: tiny
mode: shared
steps: 3
repeats: 1
matrix:
  nodes: [1, 2]
  bandwidth: [100mbit]
"""


@pytest.mark.training
@DATA
def test_an_interrupted_sweep_goes_on_with_exactly_what_is_missing(
    tmp_path: Path, before: State
) -> None:
    (tmp_path / "tiny.yaml").write_text(SWEEP)
    folder = tmp_path / "results" / "tiny"

    def sweep() -> subprocess.Popen[str]:
        return subprocess.Popen(
            (sys.executable, "-m", "testbed", "sweep", "tiny.yaml", "--results", "results"),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def records() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.glob("trials/*.json")}

    def training() -> list[Path]:
        return [path for path in folder.glob("logs/*/n1.log") if not done(path.parent.name)]

    def done(attempt: str) -> bool:
        return f"{attempt}.json" in records()

    def interrupt(number: signal.Signals, after: Callable[[], bool]) -> tuple[int, str]:
        with sweep() as process:
            try:
                assert wait_until(after, timeout_s=90)
                process.send_signal(number)
                _, said = process.communicate(timeout=30)
            finally:
                process.kill()
        return process.returncode, said

    status, said = interrupt(signal.SIGINT, lambda: bool(training()))
    assert (status, records()) == (130, {})
    assert "the same command goes on" in said
    assert "Traceback" not in said
    assert_as_before(before)

    def one_is_done_and_the_next_trains() -> bool:
        return len(records()) == 1 and worker_of("n1") is not None

    status, _ = interrupt(signal.SIGKILL, one_is_done_and_the_next_trains)
    assert status == -signal.SIGKILL
    [(name, content)] = records().items()

    with sweep() as process:
        shown, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "removed what an interrupted run left" in said
    assert records()[name] == content
    found = [json.loads(text) for text in records().values()]
    # A busy machine may make an attempt invalid; what was ok is never run again.
    ok = [record["nodes"] for record in found if record["status"] == "ok"]
    assert sorted(ok) == [1, 2]
    assert {record["status"] for record in found} <= {"ok", "invalid"}
    assert_as_before(before)
    assert (folder / "report.html").stat().st_size > 10_000
    assert str(Path("results/tiny/report.html")) in shown
    for kind in ("png", "svg", "pdf"):
        assert list(folder.glob(f"figures/*.{kind}"))
