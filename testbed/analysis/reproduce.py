"""The commands that run the same trials again, from what the records say."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.analysis.series import Record, value_at
from testbed.units import format_cpu, format_delay, format_loss, format_memory, format_rate

# What `testbed run` sets by itself; a trial with other values comes from a sweep's file.
RUN_SETS = {"scaling": "strong", "optimizer": "adam", "learning_rate": 0.003, "evaluate_every": 0}


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Commands to type in a clone of the testbed, and what must be known beside them."""

    commands: tuple[str, ...]
    remarks: tuple[str, ...]


def steps(records: Sequence[Record], name: str, has_sweep: bool) -> Steps:
    """Return how to run again what is in a results folder; with its file, or trial by trial."""
    commits = Counter(
        str(value_at(record, "manifest.git_commit"))
        for record in records
        if value_at(record, "manifest.git_commit")
    )
    commands, remarks = _checkout(commits)
    if has_sweep:
        commands.append(f"sudo make sweep CONFIG={shlex.quote(f'{name}.yaml')}")
        remarks.append(
            f"The file below, saved as {name}.yaml, has everything that was set, the CPU budget "
            f"too. In a clone without results/{name} all trials run; beside these records, only "
            "what is missing."
        )
        return Steps(commands=tuple(commands), remarks=tuple(remarks))
    single, more = _runs(records)
    return Steps(commands=(*commands, *single), remarks=(*remarks, *more))


def _checkout(commits: Counter[str]) -> tuple[list[str], list[str]]:
    if not commits:
        return [], ["The records hold no git commit: take the version named under Machine."]
    remarks = []
    ordered = sorted(commits.items(), key=lambda one: (-one[1], one[0]))
    if len(ordered) > 1:
        told = ", ".join(f"{commit} ({n} attempts)" for commit, n in ordered)
        remarks.append(f"The attempts were made with several versions: {told}.")
    commit = ordered[0][0]
    if "+" in commit:
        remarks.append(
            f"{commit}: the code had changes that no commit holds, so the commit alone may give "
            "other results."
        )
    return [f"git checkout {shlex.quote(commit.partition('+')[0])}"], remarks


def _runs(records: Iterable[Record]) -> tuple[list[str], list[str]]:
    """Return one command per trial, and which trials no command can name."""
    commands: dict[str, None] = {}
    without: list[str] = []
    for record in records:
        trial = record.get("trial")
        command = _run(trial) if isinstance(trial, dict) else None
        if command is None:
            without.append(str(record["trial_id"]))
        else:
            commands[command] = None
    remarks = []
    if without:
        told = ", ".join(dict.fromkeys(without))
        remarks.append(
            f"No command line names all settings of {told}: the scenario file or the sweep they "
            "came from is needed."
        )
    return list(commands), remarks


def _run(trial: dict[str, Any]) -> str | None:
    """Return the ``testbed run`` of a trial's canonical description, or None if there is none."""
    if "scenario_sha256" in trial or {"burst_bytes", "queue_us"} & trial.keys():
        return None
    script = trial.get("script")
    if script is None and any(trial.get(key, value) != value for key, value in RUN_SETS.items()):
        return None
    argv = ["--nodes", str(trial["nodes"])]
    if trial["nodes"] > 1:
        argv += ["--bw", format_rate(trial.get("rate_bps"))]
    for option, key, write in (
        ("--delay", "delay_us", format_delay),
        ("--loss", "loss", format_loss),
        ("--cpu", "cpu_cores", format_cpu),
        ("--mem", "memory_bytes", format_memory),
        ("--switch", "switch", str),
        ("--mode", "mode", str),
        ("--backend", "backend", str),
        ("--seed", "seed", str),
    ):
        if key in trial:
            argv += [option, write(trial[key])]
    if script is not None:
        own = ["--script", script["file"], *(["--", *script["args"]] if script["args"] else [])]
    else:
        own = []
        for option, key in (
            ("--workload", "workload"),
            ("--model", "model"),
            ("--strategy", "strategy"),
            ("--batch", "global_batch_size"),
            ("--steps", "steps"),
        ):
            if key in trial:
                own += [option, str(trial[key])]
    return shlex.join(["sudo", ".venv/bin/testbed", "run", *argv, *own])
