"""Commands that train: ``run`` for one trial, ``sweep`` for a matrix."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.clusters import BackendName
from testbed.cli.scenarios import Bandwidth, Cpu, Delay, Loss, Memory, Nodes, SwitchKind, described

if TYPE_CHECKING:
    from testbed.experiment.sweep import Outcome
    from testbed.experiment.trial import Trial

RESULTS = Path("results")
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        envvar="TESTBED_DRY_RUN",
        help="Check all, list the trials and the estimated time, start nothing.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON on stdout.")]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(run)
    app.command()(sweep)


def run(
    nodes: Nodes = 4,
    bandwidth: Bandwidth = "10mbit",
    scenario: Annotated[
        Path | None,
        typer.Option(
            "--scenario",
            "-s",
            envvar="TESTBED_SCENARIO",
            help="A VNX XML file, instead of nodes, bandwidth and the like.",
        ),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(
            "--script", envvar="TESTBED_SCRIPT", help="Your own training program, on every node."
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="What is pushed with the script: its folder.")
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script, after --.")
    ] = None,
    mode: Annotated[
        str,
        typer.Option("--mode", envvar="TESTBED_MODE", help="isolated (own budgets) or shared."),
    ] = "isolated",
    backend: BackendName = "lxc",
    workload: Annotated[
        str,
        typer.Option("--workload", "-w", envvar="TESTBED_WORKLOAD", help="fashion-mnist or mnist."),
    ] = "fashion-mnist",
    model: Annotated[
        str, typer.Option("--model", "-m", envvar="TESTBED_MODEL", help="lenet5 or mlp.")
    ] = "lenet5",
    strategy: Annotated[
        str, typer.Option("--strategy", envvar="TESTBED_STRATEGY", help="multi-worker-mirrored.")
    ] = "multi-worker-mirrored",
    batch: Annotated[
        int, typer.Option("--batch", envvar="TESTBED_BATCH", help="Global batch size.")
    ] = 256,
    steps: Annotated[
        int, typer.Option("--steps", envvar="TESTBED_STEPS", help="Timed steps.")
    ] = 25,
    seed: Annotated[
        int, typer.Option("--seed", envvar="TESTBED_SEED", help="Of weights and data order.")
    ] = 1,
    cpu: Cpu = "",
    memory: Memory = "2G",
    delay: Delay = "",
    loss: Loss = "",
    switch: SwitchKind = "openvswitch",
    results: Annotated[Path, typer.Option(help="Where the record goes.")] = RESULTS / "runs",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run one trial end to end: nodes up, links verified, trained, verified again, nodes down.

    Example:  testbed run --nodes 4 --bw 10mbit
    Example:  testbed run --scenario scenarios/lan-4n-10mbit.xml --model mlp --steps 10
    Example:  testbed run -n 2 --bw 100mbit --script train.py --dir . -- --epochs 1
    """
    from testbed.cli.screen import PhaseLine, duration_words, say, trial_words
    from testbed.experiment import store
    from testbed.experiment.payload import load_script
    from testbed.experiment.preflight import check, host_cores
    from testbed.experiment.runner import run_trial
    from testbed.experiment.sweep import estimate_s
    from testbed.experiment.trial import trial_of
    from testbed.provision import leftovers
    from testbed.scenario import vnx

    cluster = (
        vnx.read(scenario)
        if scenario is not None
        else described(nodes, bandwidth, cpu, memory, delay, loss, switch)
    )
    own = load_script(script, folder, tuple(args or ())) if script is not None else None
    trial = trial_of(
        cluster,
        host_cores=host_cores(),
        **_checked(mode=mode, backend=backend, workload=workload, model=model, strategy=strategy),
        global_batch_size=batch,
        steps=steps,
        seed=seed,
        script=own,
    )
    if trial.cpu_cores is not None:
        say(f"every node has {trial.cpu_cores:g} of a core (mode {trial.mode})")
    if dry_run:
        about = duration_words(estimate_s(trial, host_cores=host_cores()))
        typer.echo(f"{trial.trial_id}  {trial_words(trial)}  about {about}")
        _say_what_hinders([trial])
        return
    check([trial], say)
    leftovers.clean()
    with store.locked(results), PhaseLine() as phases:
        attempt = store.next_attempt(results, trial.trial_id)
        record = run_trial(
            trial,
            attempt=attempt,
            logs=store.log_folder(results, trial.trial_id, attempt),
            say=phases.phase,
        )
        path = store.save(results, record)
    if as_json:
        typer.echo(json.dumps(record, indent=1))
    else:
        _summary(record, path)
    if record["status"] != "ok":
        raise typer.Exit(1)


def sweep(
    config: Annotated[
        Path, typer.Argument(help="The matrix: a YAML file.", envvar="TESTBED_CONFIG")
    ] = Path("scenarios/quick.yaml"),
    results: Annotated[Path, typer.Option(help="Its folder is made in here.")] = RESULTS,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run all trials of a matrix, then draw the figures and write the report.

    Stop it at any time with Ctrl-C: the same command goes on with exactly what is missing.
    Exit status 0 only if every trial is ok; figures and report are written anyway.

    Example:  testbed sweep scenarios/quick.yaml
    Example:  testbed sweep scenarios/home-network.yaml --dry-run
    """
    from testbed.cli.results import write_products
    from testbed.cli.screen import say, sweep_screen
    from testbed.experiment import store
    from testbed.experiment.config import load_sweep
    from testbed.experiment.preflight import check, host_cores
    from testbed.experiment.runner import run_trial
    from testbed.experiment.sweep import order, run_sweep
    from testbed.provision import leftovers

    cores = host_cores()
    matrix = load_sweep(config, host_cores=cores)
    folder = results / matrix.name
    trials = order(matrix.trials(cores), matrix.seed)
    if dry_run:
        _list(trials, store.remaining(folder, trials), cores, as_json)
        _say_what_hinders(trials)
        return
    check(trials, say)
    for ledger in leftovers.clean():
        say(f"removed what an interrupted run left ({ledger.scenario}, {ledger.tag})")
    with sweep_screen() as (phases, lines):

        def attempt(trial: Trial, number: int) -> dict[str, Any]:
            logs = store.log_folder(folder, trial.trial_id, number)
            return run_trial(trial, attempt=number, logs=logs, say=phases.phase)

        try:
            outcome = run_sweep(matrix, folder, attempt, lines, host_cores=cores)
        except KeyboardInterrupt:
            phases.line("stopped; the same command goes on with what is missing")
            raise SystemExit(130) from None
    write_products(folder)
    _end(outcome, folder)


def _checked(**given: str) -> dict[str, Any]:
    """Return these settings; all that are unknown are refused at once."""
    from testbed.errors import InputError
    from testbed.experiment.trial import MODES
    from testbed.provision.cluster import BACKENDS
    from testbed.workload.job import MODELS, SCRIPT, STRATEGIES, WORKLOADS

    known = {
        "mode": MODES,
        "backend": tuple(BACKENDS),
        "workload": tuple(name for name in WORKLOADS if name != SCRIPT),
        "model": MODELS,
        "strategy": STRATEGIES,
    }
    faults = [
        f"{name} {value!r}: expected {' or '.join(known[name])}"
        for name, value in given.items()
        if value not in known[name]
    ]
    if faults:
        raise InputError("\n       ".join(faults))
    return given


def _say_what_hinders(trials: Sequence[Trial]) -> None:
    """Say why this machine, or this user, could not run these trials right now, if so."""
    from testbed.cli.screen import say
    from testbed.errors import TestbedError
    from testbed.experiment.preflight import check

    try:
        check(trials, say)
    except TestbedError as error:
        say(f"it would not start now: {error}")


def _list(trials: tuple[Trial, ...], todo: tuple[Trial, ...], cores: int, as_json: bool) -> None:
    from testbed.cli.screen import duration_words, say, show_table, trial_words
    from testbed.experiment.sweep import estimate_s

    rows = [
        (trial, "missing" if trial in todo else "done", estimate_s(trial, host_cores=cores))
        for trial in trials
    ]
    if as_json:
        listed = [
            {"trial_id": t.trial_id, "state": state, "estimate_s": s} | t.description()
            for t, state, s in rows
        ]
        typer.echo(json.dumps(listed, indent=1))
    else:
        show_table(
            ("trial", "what", "state", "about"),
            [[t.trial_id, trial_words(t), state, duration_words(s)] for t, state, s in rows],
        )
    total = duration_words(sum(s for _, state, s in rows if state == "missing"))
    say(f"{len(trials)} trials, {len(todo)} missing: about {total}")


def _summary(record: dict[str, Any], path: Path) -> None:
    typer.echo(f"status          {record['status']}")
    for reason in record["reasons"]:
        typer.echo(f"  {reason}")
    lines = [
        ("training time", record.get("train_time_s"), "{:.3f} s"),
        ("steps", len(record.get("step_times_s", ())) or None, "{}"),
        ("test accuracy", record.get("final_accuracy"), "{:.3f}"),
        ("test loss", record.get("final_loss"), "{:.4f}"),
        ("links", record.get("verdict", {}).get("status"), "{}"),
        ("of a step, bound", record.get("bound", {}).get("percent_of_bound"), "{:.0f} %"),
        ("overhead", sum(record["overhead_s"].values()), "{:.1f} s"),
    ]
    for name, value, form in lines:
        if value is not None:
            typer.echo(f"{name:15} {form.format(value)}")
    typer.echo(f"record          {path}")


def _end(outcome: Outcome, folder: Path) -> None:
    from testbed.cli.screen import say

    if outcome.all_ok:
        return
    say(
        f"{len(outcome.not_ok)} of {len(outcome.statuses)} trials are not ok; the report lists "
        f"them with their reasons, their logs are in {folder}/logs"
    )
    raise typer.Exit(1)
