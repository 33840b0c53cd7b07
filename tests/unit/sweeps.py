"""Small sweeps, and a runner that writes records without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from testbed.experiment.config import Sweep, parse_sweep
from testbed.experiment.trial import Trial


def sweep_of(
    text: str = "", *, nodes: str = "1, 2, 4", bandwidth: str = "10mbit, 100mbit"
) -> Sweep:
    """Return a sweep called small, with more lines before the matrix."""
    matrix = f"matrix:\n  nodes: [{nodes}]\n  bandwidth: [{bandwidth}]\n"
    return parse_sweep(f"format: 1\nname: small\n{text}{matrix}".encode(), source="small.yaml")


def record_of(trial: Trial, attempt: int = 1, status: str = "ok", **more: Any) -> dict[str, Any]:
    """Return what a runner would, in short."""
    return {
        **trial.record_keys(),
        "attempt": attempt,
        "status": status,
        "reasons": [] if status == "ok" else [f"{status} on purpose"],
        "overhead_s": {"push": 0.5},
        "step_times_s": [0.1, 0.2],
        **more,
    }


class Runner:
    """Runs a trial by writing it down; ``ending`` says how an attempt ends, or raises."""

    def __init__(self, ending: Callable[[Trial, int], str] = lambda trial, attempt: "ok") -> None:
        self.ending = ending
        self.ran: list[tuple[str, int]] = []

    def __call__(self, trial: Trial, attempt: int) -> dict[str, Any]:
        status = self.ending(trial, attempt)
        self.ran.append((trial.trial_id, attempt))
        return record_of(trial, attempt, status)
