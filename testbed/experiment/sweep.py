"""Running a sweep: which trial is next, how far it is, and how long it will take."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

from testbed.bounds import expected_goodput_bps, ring_allreduce_s
from testbed.errors import HostError, ProvisionError, ShapingError, WorkerFailed
from testbed.experiment import store
from testbed.experiment.config import Sweep
from testbed.experiment.trial import Trial
from testbed.network.verify import measurement_s, schedule
from testbed.scenario import generate

RunTrial = Callable[[Trial, int], Mapping[str, Any]]

# One trial's misfortune. Anything else (no root, no data, a bug) would befall all of them, and
# ends the sweep.
FAILURES = (HostError, ProvisionError, ShapingError, WorkerFailed)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a sweep is, told when an attempt starts and when it has finished.

    ``done`` counts trials that need no further attempt, ``failed`` those of them without an ok
    record. ``eta_s`` is the time that what remains will take. ``status`` and ``reasons`` are
    the finished attempt's.
    """

    event: Literal["started", "finished"]
    trial: Trial
    attempt: int
    done: int
    total: int
    failed: int
    elapsed_s: float
    eta_s: float
    status: str = ""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a sweep's folder holds in the end; ``statuses`` has each trial's last status."""

    statuses: dict[str, str]
    attempts_run: int

    @property
    def not_ok(self) -> dict[str, str]:
        """The trials whose last attempt was not ok, with its status."""
        return {name: status for name, status in self.statuses.items() if status != "ok"}

    @property
    def all_ok(self) -> bool:
        """Whether every trial of the sweep is ok."""
        return not self.not_ok


def order(trials: Iterable[Trial], seed: int) -> tuple[Trial, ...]:
    """Return the trials in the order to run: repeats outermost, shuffled inside each.

    A trial's place follows from the hash of seed and id, so that the order of the others does
    not change when values are added to a matrix.
    """

    def place(trial: Trial) -> tuple[int, str]:
        return trial.repeat, hashlib.sha256(f"{seed}:{trial.trial_id}".encode()).hexdigest()

    return tuple(sorted(trials, key=place))


def run_sweep(
    sweep: Sweep,
    folder: Path,
    run_trial: RunTrial,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    host_cores: int,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Run what is missing in a results folder, and return what it then holds.

    In each repeat all first attempts come before the second ones. A record appears whole or not
    at all: after Ctrl-C or a kill, the same call goes on with exactly what is missing.
    ``run_trial`` gets a trial and the number of the attempt, and returns its record.

    Raises:
        BusyError: another command works on the folder.
        ConfigError: it holds another sweep, or the budgets are too large for the host.
    """
    start_s = clock()
    attempts_run = 0
    with store.open_sweep(folder, sweep, host_cores=host_cores) as trials:
        _write_scenarios(trials, folder / "scenarios")
        planned = order(trials, sweep.seed)
        repeats = sorted({trial.repeat for trial in planned})
        durations = _past_durations(planned, store.records(folder))

        def tell(event: Literal["started", "finished"], trial: Trial, attempt: int) -> None:
            if on_progress is None:
                return
            statuses = _statuses(planned, folder)
            todo = store.remaining(folder, planned)
            finished = [t for t in planned if t.trial_id in statuses and t not in todo]
            record = store.load(path) if (path := _file(folder, trial, attempt)).exists() else {}
            on_progress(
                Progress(
                    event=event,
                    trial=trial,
                    attempt=attempt,
                    done=len(finished),
                    total=len(planned),
                    failed=sum(statuses[t.trial_id] != "ok" for t in finished),
                    elapsed_s=clock() - start_s,
                    eta_s=eta_s(todo, durations, host_cores=host_cores),
                    status=record.get("status", ""),
                    reasons=tuple(record.get("reasons", ())),
                )
            )

        for repeat in repeats:
            for attempt in range(1, store.MAX_ATTEMPTS + 1):
                for trial in store.remaining(folder, [t for t in planned if t.repeat == repeat]):
                    if store.next_attempt(folder, trial.trial_id) != attempt:
                        continue
                    tell("started", trial, attempt)
                    began_s = clock()
                    store.save(folder, _attempted(run_trial, trial, attempt))
                    durations.append((trial, clock() - began_s))
                    attempts_run += 1
                    tell("finished", trial, attempt)
        return Outcome(statuses=_statuses(planned, folder), attempts_run=attempts_run)


def _file(folder: Path, trial: Trial, attempt: int) -> Path:
    return store.trial_file(folder, trial.trial_id, attempt)


def _attempted(run_trial: RunTrial, trial: Trial, attempt: int) -> Mapping[str, Any]:
    """Return the record of an attempt; of one that broke off, what is known without it."""
    try:
        record = run_trial(trial, attempt)
    except FAILURES as error:
        return {
            **trial.record_keys(),
            "attempt": attempt,
            "status": "failed",
            "reasons": [str(error)],
        }
    if (record["trial_id"], record["attempt"]) != (trial.trial_id, attempt):
        raise ValueError(f"asked for {trial.trial_id}-a{attempt}, got another trial's record")
    return record


def _write_scenarios(trials: Iterable[Trial], folder: Path) -> None:
    for scenario in {trial.scenario().name: trial.scenario() for trial in trials}.values():
        generate.write(scenario, folder)


def _statuses(trials: Iterable[Trial], folder: Path) -> dict[str, str]:
    """Return the last status of each trial that was attempted, in the order of the trials."""
    last = {record["trial_id"]: str(record["status"]) for record in store.records(folder)}
    return {trial.trial_id: last[trial.trial_id] for trial in trials if trial.trial_id in last}


def _past_durations(
    trials: Iterable[Trial], records: Iterable[store.Record]
) -> list[tuple[Trial, float]]:
    """Return how long the attempts of earlier commands took, where their records say so."""
    by_id = {trial.trial_id: trial for trial in trials}
    return [
        (by_id[record["trial_id"]], record["ended_at"] - record["started_at"])
        for record in records
        if record["trial_id"] in by_id and {"started_at", "ended_at"} <= record.keys()
    ]


def eta_s(
    todo: Iterable[Trial], durations: Iterable[tuple[Trial, float]], *, host_cores: int
) -> float:
    """Return how long the trials will take, given how long others took.

    A trial like one that has run takes as long as that did (the median of them); any other its
    estimate, corrected by how far the estimates were off so far.
    """
    known: dict[str, list[float]] = {}
    estimated_s = took_s = 0.0
    for trial, duration_s in durations:
        known.setdefault(_kind(trial), []).append(duration_s)
        estimated_s += estimate_s(trial, host_cores=host_cores)
        took_s += duration_s
    correction = took_s / estimated_s if estimated_s else 1.0
    return sum(
        median(known[kind])
        if (kind := _kind(trial)) in known
        else correction * estimate_s(trial, host_cores=host_cores)
        for trial in todo
    )


def _kind(trial: Trial) -> str:
    """Return what all repeats of a trial have in common."""
    return replace(trial, repeat=0, seed=0).trial_id


# Estimates, for --dry-run and until trials have finished; never a result. Seconds, measured on a
# virtual machine with 2 cores, TensorFlow 2.21, 2026-11.
PHASES_S = {
    "provision": 0.6,  # and per node:
    "provision_node": 0.1,
    "push": 1.0,
    "start": 3.5,  # imports and start-up, and per node on each of the host's cores:
    "start_node_per_core": 2.8,
    "trace": 1.5,  # the first step, before the CPU budget
    "between_flows": 0.4,  # iperf3's start and end
    "collect_teardown": 1.0,
}
# Model: gradient bytes, seconds of a step on one core, and those of each sample in it. Plain
# Keras step with Adam, one thread, batches of 64 and 256: 6.4 and 19.3 ms, 6.8 and 13.2 ms.
MODELS = {
    "lenet5": (246_824, 0.002, 67e-6),
    "mlp": (3_620_040, 0.0046, 33e-6),
}
OPEN_GOODPUT_BPS = 1e9  # between nodes without a queue: 1.0 to 1.7 Gbit/s
EXCHANGE = 1.1  # times the bound: gRPC's and the ACKs' share (1.04 to 1.15 measured)
TEST_SAMPLES = 10_000
FORWARD_PART = 1 / 3  # of the work of a step is left when nothing is trained


def estimate_s(trial: Trial, *, host_cores: int = 2) -> float:
    """Return about how long a trial will take from nodes up to nodes down; a rough guess.

    A user's own script counts as nothing: nobody knows what it does.
    """
    nodes = trial.nodes
    overhead_s = sum(PHASES_S[key] for key in ("provision", "push", "start", "collect_teardown"))
    overhead_s += nodes * PHASES_S["provision_node"]
    overhead_s += nodes / host_cores * PHASES_S["start_node_per_core"]
    rounds = len(schedule([f"n{number}" for number in range(nodes)]))
    overhead_s += 2 * rounds * (measurement_s(trial.shape) + PHASES_S["between_flows"])
    if trial.model not in MODELS or trial.script is not None:
        return overhead_s
    gradient_bytes, step_s, sample_s = MODELS[trial.model]
    cores = min(trial.budgets) if trial.budgets else min(1.0, host_cores / nodes)
    local_batch = trial.global_batch_size / nodes
    compute_s = (step_s + local_batch * sample_s) / cores
    exchange_s = EXCHANGE * ring_allreduce_s(
        gradient_bytes, nodes, _goodput_bps(trial), latency_s=trial.shape.delay_us / 1e6
    )
    evaluations = 1 + (trial.steps // trial.evaluate_every if trial.evaluate_every else 0)
    evaluate_s = TEST_SAMPLES / nodes * sample_s * FORWARD_PART / cores
    return (
        overhead_s
        + PHASES_S["trace"]
        + trial.steps * compute_s
        + (trial.steps + trial.warmup_steps) * exchange_s
        + evaluations * evaluate_s
    )


def _goodput_bps(trial: Trial) -> float:
    rate_bps = trial.shape.rate_bps
    return OPEN_GOODPUT_BPS if rate_bps is None else expected_goodput_bps(rate_bps)
