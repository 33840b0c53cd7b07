"""Real training in real processes, over loopback: what a cluster computes, and how it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from workers_on_loopback import PACKAGE, START_TIMEOUT_S, run, workers

from testbed.workload.cluster_spec import node_environment
from testbed.workload.data.fetch import DEBIAN_FOLDER, DataSet, fetch
from testbed.workload.data.idx import Split, load
from testbed.workload.data.order import GlobalOrder
from testbed.workload.job import Job

EXAMPLES = PACKAGE.parent / "examples"
STEPS = 4
BATCH = 32
WARMUP_STEPS = {1: 2, 2: 1, 4: 2}

pytestmark = [
    pytest.mark.training,
    pytest.mark.skipif(
        not DEBIAN_FOLDER.is_dir(), reason="needs `apt-get install dataset-fashion-mnist`"
    ),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return fetch("fashion-mnist", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def trained(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the results of N workers; each N runs once.

    They warm up differently: equal curves also mean that warming up leaves no trace.
    """

    @cache
    def results(count: int) -> list[dict[str, Any]]:
        job = lenet(data, warmup_steps=WARMUP_STEPS[count])
        return run(job, count, tmp_path_factory.mktemp(f"n{count}"))

    return results


def lenet(data: DataSet, **changes: Any) -> Job:
    values: dict[str, Any] = {
        "workload": "fashion-mnist",
        "data_dir": str(data.folder),
        "global_batch_size": BATCH,
        "steps": STEPS,
        "evaluate_every": 2,
        "learning_rate": 0.006,
    }
    return Job(**{**values, **changes})


@pytest.mark.parametrize("count", [2, 4])
def test_the_loss_curve_depends_neither_on_the_number_of_workers_nor_on_warm_up(
    trained: Any, count: int
) -> None:
    [alone] = trained(1)
    for result in trained(count):
        assert result["losses"] == pytest.approx(alone["losses"], rel=1e-4)
        assert result["final_accuracy"] == pytest.approx(alone["final_accuracy"], abs=2e-3)
        assert result["final_loss"] == pytest.approx(alone["final_loss"], rel=1e-3)


def test_training_learns(trained: Any) -> None:
    [alone] = trained(1)
    assert alone["losses"][-1] < alone["losses"][0]
    assert alone["final_accuracy"] > 0.2  # ten classes


def test_a_result_holds_what_was_measured_and_nothing_else(trained: Any) -> None:
    [alone] = trained(1)
    assert alone["format"] == 1
    assert alone["parameters"] == 61_706
    assert alone["gradient_bytes"] == 4 * 61_706
    assert alone["samples_total"] == STEPS * BATCH
    assert len(alone["step_times_s"]) == len(alone["losses"]) == STEPS
    assert len(alone["warmup_step_times_s"]) == 2
    assert [one["step"] for one in alone["evaluations"]] == [2, 4]
    assert [one["samples"] for one in alone["evaluations"]] == [64, 128]
    assert alone["started_at"] < alone["ended_at"]
    assert None not in alone.values()


def test_evaluations_and_starting_are_off_the_clock(trained: Any) -> None:
    for count in (1, 2):
        for result in trained(count):
            steps_s = sum(result["step_times_s"])
            assert steps_s <= result["train_time_s"] < steps_s + 0.25
            assert result["evaluations"][-1]["time_s"] == result["train_time_s"]
            assert result["evaluate_s"] > 0


@pytest.mark.parametrize("count", [2, 4])
def test_a_step_sends_one_ring_of_gradients(trained: Any, count: int) -> None:
    result = trained(count)[0]
    # every worker's traffic passes the one loopback device
    ring = 2 * (count - 1) * result["gradient_bytes"] * STEPS
    # ACKs, headers and heartbeats come on top (2 to 10 % seen, more on a busy machine); a second
    # exchange, or one of twice the width, would be 2.
    assert ring < result["bytes_sent"] < 1.3 * ring


def test_gradients_are_those_of_numpy(data: DataSet, tmp_path: Path) -> None:
    """One SGD step of rate 1 moves every weight by its gradient."""
    job = lenet(data, model="mlp", optimizer="sgd", learning_rate=1.0)
    (tmp_path / "job.json").write_text(job.to_json())
    subprocess.run(
        (sys.executable, "-c", ONE_STEP, tmp_path / "job.json", tmp_path / "step.npz"),
        env={**node_environment(os.environ), "PYTHONPATH": str(PACKAGE)},
        check=True,
        timeout=START_TIMEOUT_S,
        stderr=subprocess.DEVNULL,
    )
    with np.load(tmp_path / "step.npz") as saved:
        before = [saved[f"before{i}"] for i in range(6)]
        after = [saved[f"after{i}"] for i in range(6)]
        reported = float(saved["loss"])
    assert sum(weight.size for weight in before) == 905_010
    batch = GlobalOrder(60_000, global_batch_size=BATCH, seed=job.seed).batch(0)
    train = load("fashion-mnist", data.folder).train
    loss, gradients = numpy_mlp(
        before, Split(images=train.images[batch], labels=train.labels[batch])
    )
    assert reported == pytest.approx(loss, rel=1e-5)
    for start, end, gradient in zip(before, after, gradients, strict=True):
        np.testing.assert_allclose(start - end, gradient, rtol=1e-3, atol=2e-6)


ONE_STEP = """
import os, sys
from pathlib import Path
from workload import strategies
from workload.cluster_spec import ClusterSpec
from workload.job import Job
from workload.data.idx import load
from workload.data.order import GlobalOrder

job = Job.from_json(Path(sys.argv[1]).read_text())
train = load(job.workload, Path(job.data_dir)).train
module = strategies.load(job.strategy)
import numpy, tensorflow
trainer = module.MirroredTrainer(tensorflow.distribute.get_strategy(), job)
weights = trainer._model.trainable_variables
before = [weight.numpy() for weight in weights]
batch = GlobalOrder(60_000, global_batch_size=job.global_batch_size, seed=job.seed).batch(0)
loss = trainer.train_step(train.images[batch], train.labels[batch])
named = {f"before{i}": weight for i, weight in enumerate(before)}
named |= {f"after{i}": weight.numpy() for i, weight in enumerate(weights)}
numpy.savez(sys.argv[2], loss=loss, **named)
"""


def numpy_mlp(
    weights: list[NDArray[np.float32]], batch: Split
) -> tuple[float, list[NDArray[np.float64]]]:
    """Return the mean loss and the gradients of a ReLU perceptron, by hand, in float64."""
    w1, b1, w2, b2, w3, b3 = (weight.astype(np.float64) for weight in weights)
    x0 = batch.images.reshape(len(batch.images), -1) / 255.0
    z1 = x0 @ w1 + b1
    x1 = np.maximum(z1, 0)
    z2 = x1 @ w2 + b2
    x2 = np.maximum(z2, 0)
    logits = x2 @ w3 + b3
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances = odds / odds.sum(axis=1, keepdims=True)
    rows = np.arange(len(x0))
    loss = float(-np.log(chances[rows, batch.labels]).mean())
    d3 = chances.copy()
    d3[rows, batch.labels] -= 1
    d3 /= len(x0)
    d2 = d3 @ w3.T * (z2 > 0)
    d1 = d2 @ w2.T * (z1 > 0)
    return loss, [x0.T @ d1, d1.sum(0), x1.T @ d2, d2.sum(0), x2.T @ d3, d3.sum(0)]


def test_a_killed_worker_ends_the_others_soon_and_not_as_a_success(
    data: DataSet, tmp_path: Path
) -> None:
    with workers(lenet(data, steps=1_000_000, evaluate_every=0), 2, tmp_path) as both:
        for worker in both:
            worker.wait_for("ready", START_TIMEOUT_S)
        for worker in both:
            worker.go()
        both[0].wait_for("progress", START_TIMEOUT_S)
        os.kill(both[1].process.pid, signal.SIGKILL)
        assert both[0].end(timeout_s=20) == 1
        assert "Traceback" in both[0].log.read_text()
        assert not (tmp_path / "result-0.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_worker_ends_the_other_by_its_missing_heartbeat(
    data: DataSet, tmp_path: Path, frozen: int
) -> None:
    with workers(lenet(data, steps=1_000_000, evaluate_every=0), 2, tmp_path) as both:
        for worker in both:
            worker.wait_for("ready", START_TIMEOUT_S)
        for worker in both:
            worker.go()
        both[0].wait_for("progress", START_TIMEOUT_S)
        os.kill(both[frozen].process.pid, signal.SIGSTOP)
        assert both[1 - frozen].end(timeout_s=40) == 1  # 10 s were seen


def test_a_tutorial_script_trains_on_two_workers_unchanged(tmp_path: Path) -> None:
    job = Job(
        workload="script", script=str(EXAMPLES / "mwms_tutorial.py"), args=("--steps", "5"), steps=5
    )
    first, second = run(job, 2, tmp_path)
    assert [record["step"] for record in first["records"]] == [1, 2, 3, 4, 5]
    assert [record["loss"] for record in first["records"]] == pytest.approx(
        [record["loss"] for record in second["records"]]
    )
    times = [record["time_s"] for record in first["records"]]
    assert times == sorted(times)
    assert times[-1] < first["train_time_s"]
    assert first["cpu_s"] > 0.5
    assert first["bytes_sent"] > 5 * 4 * 4_417  # at least one way of the gradients


def test_wrong_data_ends_the_worker_before_it_waits_for_anyone(
    data: DataSet, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    for file in data.files:
        (tmp_path / "data" / file).write_bytes(b"\0\0\x08\x01\0\0\0\0")
    with workers(lenet(data, data_dir=str(tmp_path / "data")), 2, tmp_path) as both:
        for worker in both:
            assert worker.end(START_TIMEOUT_S) == 1
            assert "these are not the published bytes" in worker.tail()
            assert "Traceback" not in worker.tail()
