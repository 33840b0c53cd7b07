"""The timed loop: warm up, rewind, wait for go, train with a stop watch, evaluate beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import strategies
from .cluster_spec import ClusterSpec
from .counters import Meter, peak_memory_bytes
from .data.idx import Arrays, load
from .data.order import GlobalOrder, evaluation_bounds
from .job import Job
from .protocol import Channel
from .strategies import Trainer


def train(
    job: Job, spec: ClusterSpec, channel: Channel, save: Callable[[dict[str, Any]], None]
) -> None:
    """Train as the job says and hand the result to ``save`` before the workers leave together.

    Raises:
        JobError: the nodes do not divide the global batch.
        DataFault: the data is missing or is not what it should be.
    """
    job.per_replica_batch_size(spec.size)
    with ThreadPoolExecutor(max_workers=1) as pool:
        # read and verified while the framework is being imported
        loading = pool.submit(load, job.workload, Path(job.data_dir))
        strategy = strategies.load(job.strategy)
        data = loading.result()
    run = _Run(job, spec, data, strategy.join(job, spec), channel)
    run.warm_up()
    channel.emit(
        "ready", parameters=run.trainer.parameters, gradient_bytes=run.trainer.gradient_bytes
    )
    channel.wait_for_go()
    started_at = time.time()
    run.timed_steps()
    save({**run.result(), "started_at": started_at, "ended_at": time.time()})
    run.trainer.barrier()  # leave together: there is no other shutdown barrier


@dataclass
class _Run:
    """One training in progress; its lists are the raw values of the result."""

    job: Job
    spec: ClusterSpec
    data: Arrays
    trainer: Trainer
    channel: Channel
    warmup_step_times_s: list[float] = field(default_factory=list)
    step_times_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    evaluate_s: float = 0.0

    def __post_init__(self) -> None:
        self.meter = Meter(self.spec.device)
        self.order = GlobalOrder(
            len(self.data.train.labels),
            global_batch_size=self.job.global_batch_size,
            seed=self.job.seed,
        )

    def warm_up(self) -> None:
        """Trace and run everything once, then put the weights back."""
        self.trainer.barrier()
        for step in range(self.job.warmup_steps):
            began = time.perf_counter()
            self._step(step)
            self.warmup_step_times_s.append(time.perf_counter() - began)
        head = slice(0, 8)
        self.trainer.evaluate(self.data.test.images[head], self.data.test.labels[head])
        self.trainer.rewind()
        self.order.batch(0)

    def timed_steps(self) -> None:
        """Train with the clock running from a barrier to the last step, but for evaluations."""
        job = self.job
        self.trainer.barrier()
        self.meter.start()
        for step in range(job.steps):
            began = time.perf_counter()
            loss = self._step(step)
            self.step_times_s.append(time.perf_counter() - began)
            self.losses.append(loss)
            done = step + 1
            self.channel.progress(step=done, steps=job.steps)
            if job.evaluate_every and done % job.evaluate_every == 0 and done < job.steps:
                self.meter.stop()
                self._evaluate(done)
                self.meter.start()
        self.meter.stop()
        self.channel.emit("trained", train_time_s=self.meter.wall_s)
        self._evaluate(job.steps)

    def _step(self, step: int) -> float:
        shard = self.order.shard(step, rank=self.spec.rank, replicas=self.spec.size)
        return self.trainer.train_step(self.data.train.images[shard], self.data.train.labels[shard])

    def _evaluate(self, step: int) -> None:
        """Score this replica's part of the test set. Its all-reduce ends on all nodes at once."""
        began = time.perf_counter()
        test = self.data.test
        first, last = evaluation_bounds(
            len(test.labels), rank=self.spec.rank, replicas=self.spec.size
        )
        loss, accuracy = self.trainer.evaluate(test.images[first:last], test.labels[first:last])
        self.evaluate_s += time.perf_counter() - began
        self.evaluations.append(
            {
                "step": step,
                "samples": step * self.job.global_batch_size,
                "time_s": self.meter.wall_s,
                "loss": loss,
                "accuracy": accuracy,
            }
        )

    def result(self) -> dict[str, Any]:
        """Return what was measured. ``final_loss`` is over the test set, as the accuracy is."""
        return {
            "train_time_s": self.meter.wall_s,
            "step_times_s": self.step_times_s,
            "warmup_step_times_s": self.warmup_step_times_s,
            "losses": self.losses,
            "evaluations": self.evaluations,
            "evaluate_s": self.evaluate_s,
            "samples_total": self.job.steps * self.job.global_batch_size,
            "final_loss": self.evaluations[-1]["loss"],
            "final_accuracy": self.evaluations[-1]["accuracy"],
            "parameters": self.trainer.parameters,
            "gradient_bytes": self.trainer.gradient_bytes,
            "cpu_s": self.meter.cpu_s,
            "peak_memory_bytes": peak_memory_bytes(),
            **self.meter.lan,
        }
