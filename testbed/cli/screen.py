"""What people see: tables on stdout, progress on stderr."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from testbed.experiment.sweep import Progress
    from testbed.experiment.trial import Trial


def say(message: str) -> None:
    """Print one line of progress."""
    typer.echo(message, err=True)


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; at no terminal it is not cut to a width."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def trial_words(trial: Trial) -> str:
    """Return a trial as people name it: ``4 nodes 10mbit repeat 1``."""
    from testbed.units import format_delay, format_loss, format_rate

    words = [f"{trial.nodes} node{'s' if trial.nodes > 1 else ''}"]
    if trial.nodes > 1:
        words.append(format_rate(trial.shape.rate_bps))
    if trial.shape.delay_us:
        words.append(format_delay(trial.shape.delay_us))
    if trial.shape.loss:
        words.append(f"{format_loss(trial.shape.loss)} loss")
    if trial.mode != "isolated":
        words.append(trial.mode)
    what = f"script {trial.script.file}" if trial.script else f"{trial.model} {trial.workload}"
    return " ".join([*words, what, f"repeat {trial.repeat + 1}"])


def duration_words(seconds: float) -> str:
    """Return a duration as people say it: ``45 s``, ``7 min``, ``2 h 5 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class PhaseLine:
    """Shows a trial's phase: a living line at a terminal, a line per phase elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True)
        self._status = self._console.status("") if self._console.is_terminal else None
        self._quiet = quiet
        self._prefix = ""
        self._last = ""

    def __enter__(self) -> PhaseLine:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, prefix: str) -> None:
        """Put these words before every phase from now on."""
        self._prefix = prefix

    def phase(self, name: str) -> None:
        """Show a phase; what starts with ``warning`` stays on the screen."""
        if name.startswith("warning"):
            self.line(name)
        elif self._status is not None:
            self._status.update(f"{self._prefix} {name}".strip())
        elif not self._quiet and name.partition(":")[0] != self._last:
            # Steps of training are one line where nobody watches it live.
            self._last = name.partition(":")[0]
            say(name.partition(":")[0])

    def line(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def sweep_screen() -> Iterator[tuple[PhaseLine, SweepLines]]:
    """Give what shows a sweep: its phases live, and a line for each attempt that ended."""
    with PhaseLine(quiet=True) as phases:
        yield phases, SweepLines(phases)


class SweepLines:
    """Turns a sweep's progress into lines: trial, status, how many are left, and how long."""

    def __init__(self, phases: PhaseLine) -> None:
        self._phases = phases

    def __call__(self, progress: Progress) -> None:
        """Show one event."""
        words = trial_words(progress.trial)
        left = f"{duration_words(progress.eta_s)} left"
        if progress.event == "started":
            number = min(progress.done + 1, progress.total)
            self._phases.begin(f"[{number}/{progress.total}] {words}, {left}:")
            return
        failures = f", {progress.failed} failed" if progress.failed else ""
        self._phases.line(
            f"[{progress.done}/{progress.total}] {words}: {progress.status} ({left}{failures})"
        )
        for reason in progress.reasons:
            self._phases.line(f"    {reason}")
