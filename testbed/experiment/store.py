"""A results folder: the frozen sweep, one file per attempt, and who works on it.

    results/SWEEP/sweep.yaml         what was asked for, with the CPU budget it was given
    results/SWEEP/scenarios/*.xml    the clusters
    results/SWEEP/trials/ID-aN.json  attempt N of trial ID
    results/SWEEP/logs/ID-aN/        what its nodes said

A trial is done when one attempt is ok (or did not converge, which is a result), or when there
are two attempts.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.errors import BusyError, ConfigError, TestbedError
from testbed.experiment.config import Sweep, parse_sweep
from testbed.experiment.marked_yaml import read_bounded
from testbed.experiment.points import AXES, axis_text, points
from testbed.experiment.trial import Trial, budget_fault
from testbed.files import make_folder, owner, write_whole

if TYPE_CHECKING:
    from pandas import DataFrame

Record = dict[str, Any]

FORMAT = 1
MAX_ATTEMPTS = 2
ANY_CORES = 10**6  # for a sweep that says its CPU budget itself
FROZEN = "sweep.yaml"
LOCK = "sweep.lock.pid"
STATUSES = ("ok", "failed", "invalid", "non_converged")
RESULTS = ("ok", "non_converged")  # with one of these a trial needs no second attempt
FILE = re.compile(r"(?P<trial_id>[0-9a-f]{12})-a(?P<attempt>[1-9][0-9]*)\.json")

FIRST_COLUMNS = (
    *("trial_id", "attempt", "status", "mode", "backend", "nodes", "rate_bps", "strategy"),
    *("workload", "model", "scaling", "global_batch_size", "steps", "repeat", "seed"),
    *("train_time_s", "samples_total", "final_loss", "final_accuracy"),
)


def trial_file(folder: Path, trial_id: str, attempt: int) -> Path:
    """Return where the record of an attempt is, or will be."""
    return folder / "trials" / f"{trial_id}-a{attempt}.json"


def log_folder(folder: Path, trial_id: str, attempt: int) -> Path:
    """Return where the logs of an attempt's nodes are, or will be: NODE.log each."""
    return folder / "logs" / f"{trial_id}-a{attempt}"


def save(folder: Path, record: Mapping[str, Any]) -> Path:
    """Write a record whole, and return its path. What is None is left out: it was not measured.

    Raises:
        TestbedError: it cannot be written (a full disk).
        ValueError: a record without identity, or one that exists already; both are bugs.
    """
    trial_id, attempt = record["trial_id"], record["attempt"]
    path = trial_file(folder, trial_id, attempt)
    if not FILE.fullmatch(path.name) or record.get("status") not in STATUSES:
        raise ValueError(f"not a record: {path.name} with status {record.get('status')!r}")
    if path.exists():
        raise ValueError(f"{path} exists: a record is never overwritten")
    whole = {"format": FORMAT} | {key: value for key, value in record.items() if value is not None}
    text = json.dumps(whole, indent=1, sort_keys=True, allow_nan=False)
    try:
        write_whole(path, f"{text}\n".encode())
    except OSError as error:
        raise TestbedError(
            f"{path} cannot be written: {error.strerror or error}; mend that, and the same command "
            "runs the trial again"
        ) from error
    return path


def load(path: Path) -> Record:
    """Return one record.

    Raises:
        ConfigError: it is not a record of this format; says what to do next.
    """
    try:
        record = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: not a record ({error}); move it away, and the trial is run again"
        ) from error
    found = record.get("format") if isinstance(record, dict) else None
    if found != FORMAT or isinstance(found, bool):
        raise ConfigError(
            f"{path}: record format {found!r}, expected {FORMAT}: read it with the version of "
            "the testbed that wrote it, or move it away to run the trial again"
        )
    named = FILE.fullmatch(path.name)
    missing = [key for key in ("trial_id", "attempt", "status") if key not in record]
    if missing:
        raise ConfigError(f"{path}: no {', '.join(missing)}; move it away to run the trial again")
    if named and (named["trial_id"], int(named["attempt"])) != (
        record["trial_id"],
        record["attempt"],
    ):
        raise ConfigError(
            f"{path}: holds attempt {record['attempt']} of trial {record['trial_id']}: it was "
            "renamed; give it its name back"
        )
    return dict(record)


def records(folder: Path) -> list[Record]:
    """Return all records of a results folder, by trial and attempt; [] if there are none."""
    return [load(path) for _, _, path in _attempts(folder)]


def _attempts(folder: Path) -> list[tuple[str, int, Path]]:
    """Return trial id, attempt and file of all that was run; other files are not ours."""
    trials = folder / "trials"
    if not trials.is_dir():
        return []
    found = ((FILE.fullmatch(path.name), path) for path in trials.iterdir())
    return sorted((name["trial_id"], int(name["attempt"]), path) for name, path in found if name)


def next_attempt(folder: Path, trial_id: str) -> int:
    """Return the number of a trial's next attempt, from 1."""
    return 1 + max((number for name, number, _ in _attempts(folder) if name == trial_id), default=0)


def remaining(folder: Path, trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Return the trials that are not done, in the order given."""
    attempts: dict[str, int] = {}
    have_result: set[str] = set()
    for record in records(folder):
        attempts[record["trial_id"]] = max(record["attempt"], attempts.get(record["trial_id"], 0))
        if record["status"] in RESULTS:
            have_result.add(record["trial_id"])
    return tuple(
        trial
        for trial in trials
        if trial.trial_id not in have_result and attempts.get(trial.trial_id, 0) < MAX_ATTEMPTS
    )


@contextmanager
def open_sweep(folder: Path, sweep: Sweep, *, host_cores: int) -> Iterator[tuple[Trial, ...]]:
    """Hold a results folder for one sweep, and yield all its trials; freezes the sweep.

    A folder of the same sweep is gone on with, more values and repeats included.

    Raises:
        BusyError: another command works on it.
        ConfigError: it holds something else, or a sweep with other settings.
    """
    trials = sweep.trials(host_cores)
    _refuse_foreign(folder)
    with locked(folder):
        frozen = folder / FROZEN
        if frozen.exists():
            _refuse_changed(folder, sweep, host_cores)
        content = frozen_content(sweep, host_cores)
        if not frozen.exists() or frozen.read_bytes() != content:
            write_whole(frozen, content)
        for name in ("trials", "scenarios", "logs"):
            make_folder(folder / name)
        yield trials


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a results folder, made if missing; the lock ends with the process, however it ends.

    Raises:
        BusyError: another process holds it; names its pid.
        ConfigError: the folder cannot be written.
    """
    path = folder / LOCK
    try:
        make_folder(folder)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise BusyError(
                f"{folder}: another command (pid {pid}) works on this sweep: wait for it, or stop "
                f"it with `kill -INT {pid}`; what it finished is kept"
            ) from None
        if person := owner():
            os.fchown(descriptor, *person)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder with anything in it and no frozen sweep: it is not ours."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; give the sweep another name")
    if folder.is_dir() and not (folder / FROZEN).exists():
        # A command that was killed before it froze its sweep leaves the lock, or half a file.
        others = sorted(
            path.name
            for path in folder.iterdir()
            if path.name != LOCK and not path.name.startswith(f".{FROZEN}.")
        )
        if others:
            raise ConfigError(
                f"{folder}: holds {', '.join(others[:3])} and no {FROZEN}: something else "
                "made it; give the sweep another name, or move the folder away"
            )


def frozen_content(sweep: Sweep, host_cores: int) -> bytes:
    """Return the sweep's file with the CPU budget written out, if it was left to the rule.

    So that a folder says what its trials had, whatever machine goes on with it.
    """
    cpu_cores = sweep.cpu_cores(host_cores)
    if cpu_cores is None or sweep.cpu is not None:
        return sweep.content
    marked = sweep.marked
    lines = sweep.content.decode("utf-8-sig").splitlines(keepends=True)
    why = f"given by the testbed: 80 % of {host_cores} cores, shared by the most nodes"
    lines.insert(marked.first_line - 1, f"{' ' * marked.indent}cpu: {cpu_cores:g}  # {why}\n")
    content = "".join(lines).encode()
    written = parse_sweep(content, source=sweep.source)
    if written.cpu != cpu_cores or written.trials(host_cores) != sweep.trials(host_cores):
        raise ConfigError(f"{sweep.source}: cannot be frozen; write `cpu: {cpu_cores:g}` into it")
    return content


def _refuse_changed(folder: Path, sweep: Sweep, host_cores: int) -> None:
    """Refuse a sweep that does not want all trials of the frozen one any more."""
    path = folder / FROZEN
    try:
        before = parse_sweep(read_bounded(path), source=str(path))
    except ConfigError as error:
        raise ConfigError(
            f"{path} cannot be read by this version: give the sweep another name, or move the "
            f"folder away\n{error}"
        ) from error
    wanted = {trial.trial_id for trial in sweep.trials(host_cores)}
    # The frozen sweep says its budget, so what it ran does not depend on this machine's cores.
    lost = [t for t in before.trials(ANY_CORES) if t.trial_id not in wanted]
    if not lost:
        return
    changes = [*_changed_settings(before, sweep, host_cores), *_lost_values(before, sweep)]
    changes = changes or [f"{len(lost)} of its trials are not in the matrix now (exclude, include)"]
    listed = "\n".join(f"  {change}" for change in changes)
    raise ConfigError(
        f"{folder} holds a sweep with other settings than {sweep.source}\n{listed}\n"
        "to go on with it, put these back (added values and repeats are welcome); to run the "
        f"changed sweep, give it another name, such as `name: {before.name}-2`"
    )


def _changed_settings(before: Sweep, sweep: Sweep, host_cores: int) -> Iterator[str]:
    """Yield each fixed setting that is another now, with its old and new value."""
    old, new = before.settings(ANY_CORES), sweep.settings(host_cores)
    for key in (key for key in old if key in new and old[key] != new[key]):
        if key == "repeats" and before.repeats < sweep.repeats:
            continue
        hint = ""
        if key == "cpu" and sweep.cpu is None and before.cpu is not None:
            most = max(point.nodes for point in points(sweep) if point.mode == "isolated")
            too_much = budget_fault(host_cores, [before.cpu] * most)
            hint = f" (80 % of {host_cores} cores, shared by {most} nodes): " + (
                f"{most} nodes at {old[key]} are too many for this host; a sweep that has them "
                f"from the start sets `cpu: {new[key]}` explicitly"
                if too_much
                else f"set `cpu: {old[key]}` explicitly to go on"
            )
        yield f"{key}: was {old[key]}, is {new[key]}{hint}"


def _lost_values(before: Sweep, sweep: Sweep) -> Iterator[str]:
    """Yield each value that the matrix no longer has."""
    old, new = points(before), points(sweep)
    for axis in AXES:
        now = {getattr(point, axis) for point in new}
        gone = dict.fromkeys(getattr(point, axis) for point in old)
        if texts := ", ".join(axis_text(axis, value) for value in gone if value not in now):
            yield f"{axis}: the matrix no longer has {texts}"


def table(found: Iterable[Record]) -> DataFrame:
    """Return records as a table: a row per attempt, ``overhead_s.push`` for what is nested.

    What was not measured is NaN; lists (step times) stay lists.
    """
    import pandas as pd  # here: it takes longer to import than most commands take

    frame = pd.json_normalize(list(found), sep=".")
    first = [column for column in FIRST_COLUMNS if column in frame.columns]
    return frame[[*first, *sorted(set(frame.columns) - set(first))]]


def export_csv(found: Iterable[Record], path: Path) -> Path:
    """Write the table as CSV; lists are JSON in their cell."""
    frame = table(found)
    for column in frame.columns:
        frame[column] = [
            json.dumps(cell) if isinstance(cell, list | dict) else cell for cell in frame[column]
        ]
    write_whole(path, frame.to_csv(index=False).encode())
    return path
