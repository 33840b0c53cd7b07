import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import Runner, record_of, sweep_of

from testbed.errors import BusyError, ConfigError, MissingCapability, ProvisionError
from testbed.experiment import store
from testbed.experiment.sweep import estimate_s, eta_s, order, run_sweep
from testbed.experiment.trial import Trial
from testbed.scenario import vnx
from testbed.scenario.model import Shape

TRIALS = sweep_of().trials(2)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "small"


def run(folder, runner, on_progress=None):
    ticks = itertools.count()
    return run_sweep(sweep_of(), folder, runner, on_progress, host_cores=2, clock=ticks.__next__)


def test_every_trial_runs_once_in_order(folder):
    runner = Runner()
    outcome = run(folder, runner)
    assert runner.ran == [(trial.trial_id, 1) for trial in order(TRIALS, 1)]
    assert outcome.all_ok
    assert outcome.attempts_run == len(outcome.statuses) == 15
    assert {record["trial_id"] for record in store.records(folder)} == {*outcome.statuses}


def test_the_order_is_a_shuffled_permutation_with_repeats_outermost():
    planned = order(TRIALS, 1)
    assert sorted(trial.trial_id for trial in planned) == sorted(t.trial_id for t in TRIALS)
    assert [trial.repeat for trial in planned] == [0] * 5 + [1] * 5 + [2] * 5
    kinds = [
        [(trial.nodes, trial.shape.rate_bps) for trial in planned if trial.repeat == repeat]
        for repeat in range(3)
    ]
    assert len({tuple(kind) for kind in kinds}) > 1


@given(st.permutations(TRIALS), st.integers(0, 2**31))
def test_the_order_depends_on_the_seed_alone(shuffled, seed):
    assert order(shuffled, seed) == order(TRIALS, seed)


@given(st.sets(st.sampled_from(TRIALS)), st.integers(0, 99))
def test_adding_trials_does_not_change_the_order_of_the_others(some, seed):
    assert order(some, seed) == tuple(trial for trial in order(TRIALS, seed) if trial in some)


def test_second_attempts_follow_at_the_end_of_their_repeat(folder):
    first, _, third, *_ = planned = order(TRIALS, 1)
    failing = {(first.trial_id, 1), (third.trial_id, 1), (third.trial_id, 2)}
    runner = Runner(lambda trial, n: "failed" if (trial.trial_id, n) in failing else "ok")
    outcome = run(folder, runner)
    expected = [(trial.trial_id, 1) for trial in planned]
    expected[5:5] = [(first.trial_id, 2), (third.trial_id, 2)]
    assert runner.ran == expected
    assert outcome.not_ok == {third.trial_id: "failed"}
    assert not outcome.all_ok
    assert run(folder, Runner()).attempts_run == 0


def test_what_did_not_converge_is_a_result_but_not_ok(folder):
    runner = Runner(lambda trial, n: "non_converged" if trial.nodes == 4 else "ok")
    outcome = run(folder, runner)
    assert outcome.attempts_run == 15
    assert {*outcome.not_ok.values()} == {"non_converged"}


class Crash(BaseException):
    """As Ctrl-C and SIGKILL do: nothing of ours catches it."""


@settings(max_examples=25, deadline=None)
@given(
    crashes=st.lists(st.integers(1, 12), max_size=6),
    failing=st.sets(st.sampled_from([(trial.trial_id, n) for trial in TRIALS for n in (1, 2)])),
)
def test_resume_runs_exactly_what_is_missing(tmp_path_factory, crashes, failing):
    folder = tmp_path_factory.mktemp("sweeps") / "small"
    ran = []

    def status(trial, attempt):
        return "failed" if (trial.trial_id, attempt) in failing else "ok"

    for crash_at in [*crashes, 1000]:
        runner = Runner()

        def ending(trial, attempt, runner=runner, crash_at=crash_at):
            if len(runner.ran) + 1 == crash_at:
                raise Crash
            return status(trial, attempt)

        runner.ending = ending
        try:
            outcome = run(folder, runner)
        except Crash:
            outcome = None
        ran += runner.ran
    assert outcome is not None
    assert len(ran) == len({*ran})
    firsts = {(trial.trial_id, 1) for trial in TRIALS}
    assert {*ran} == firsts | {(name, 2) for name, _ in firsts & failing}
    assert {record["trial_id"] for record in store.records(folder)} == {name for name, _ in firsts}


def test_ctrl_c_leaves_no_record_and_frees_the_folder(folder):
    def interrupted(trial, attempt):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(folder, interrupted)
    assert store.records(folder) == []
    assert run(folder, Runner()).all_ok


def test_a_second_command_is_refused_while_the_first_runs(folder):
    refused = []

    def runner(trial, attempt):
        with pytest.raises(BusyError):
            run(folder, Runner())
        refused.append(trial)
        return record_of(trial, attempt)

    run(folder, runner)
    assert len(refused) == 15


def test_a_trial_that_breaks_off_is_a_failed_attempt(folder):
    broken = TRIALS[3]

    def ending(trial, attempt):
        if trial == broken and attempt == 1:
            raise ProvisionError("n2 did not come up")
        return "ok"

    assert run(folder, Runner(ending)).all_ok
    record = store.load(store.trial_file(folder, broken.trial_id, 1))
    assert (record["status"], record["reasons"]) == ("failed", ["n2 did not come up"])


@pytest.mark.parametrize("error", [MissingCapability("no root"), ConfigError("no"), KeyError(1)])
def test_what_would_befall_every_trial_ends_the_sweep(folder, error):
    def runner(trial, attempt):
        raise error

    with pytest.raises(type(error)):
        run(folder, runner)
    assert store.records(folder) == []


def test_a_record_of_another_trial_is_a_bug(folder):
    with pytest.raises(ValueError, match="another trial's record"):
        run(folder, lambda trial, attempt: record_of(trial, attempt + 1))


def test_the_scenarios_are_kept_beside_the_results(folder):
    run(folder, Runner())
    written = sorted((folder / "scenarios").iterdir())
    assert [path.name for path in written] == [
        "lan-1n-unlimited.xml",
        "lan-2n-100mbit.xml",
        "lan-2n-10mbit.xml",
        "lan-4n-100mbit.xml",
        "lan-4n-10mbit.xml",
    ]
    assert {vnx.read(path) for path in written} == {trial.scenario() for trial in TRIALS}


def test_progress_counts_and_ends_with_nothing_left(folder):
    told = []
    runner = Runner(lambda trial, n: "failed" if trial.nodes == 4 else "ok")
    run(folder, runner, told.append)
    starts = [progress for progress in told if progress.event == "started"]
    ends = [progress for progress in told if progress.event == "finished"]
    assert len(starts) == len(ends) == 15 + 6
    assert [progress.done for progress in ends] == sorted(progress.done for progress in ends)
    assert all(progress.total == 15 for progress in told)
    assert all(progress.status == "" for progress in starts)
    assert (ends[-1].done, ends[-1].failed, ends[-1].eta_s) == (15, 6, 0)
    assert starts[0].done == starts[0].failed == 0
    assert starts[0].eta_s == pytest.approx(sum(map(estimate_s, TRIALS)))
    failed = next(progress for progress in ends if progress.status == "failed")
    assert failed.reasons == ("failed on purpose",)
    assert [progress.elapsed_s for progress in told] == sorted(p.elapsed_s for p in told)


def test_the_time_left_follows_the_trials_that_have_run():
    known, other = TRIALS[0], TRIALS[1]
    again = replace(known, repeat=1, seed=2)
    assert eta_s([again], [(known, 7.0), (known, 9.0), (known, 100.0)], host_cores=2) == 9.0
    twice_as_slow = [(known, 2 * estimate_s(known))]
    assert eta_s([other], twice_as_slow, host_cores=2) == pytest.approx(2 * estimate_s(other))
    assert eta_s([], [], host_cores=2) == 0


def test_earlier_commands_inform_the_time_left(folder):
    def timed(trial, attempt):
        return record_of(trial, attempt, started_at=100.0, ended_at=103.0)

    def crashing(trial, attempt):
        if trial.repeat == 2:
            raise KeyboardInterrupt
        return timed(trial, attempt)

    with pytest.raises(KeyboardInterrupt):
        run(folder, crashing)
    told = []
    run(folder, timed, told.append)
    assert told[0].eta_s == pytest.approx(5 * 3.0)


def test_estimates_grow_with_nodes_and_fall_with_bandwidth():
    def estimate(nodes, rate_bps):
        return estimate_s(Trial(nodes=nodes, shape=Shape(rate_bps=rate_bps), cpu_cores=0.2))

    for slow, fast in itertools.pairwise([10**6, 10**7, 10**8, 10**9]):
        assert estimate(4, slow) > estimate(4, fast)
        assert estimate(8, slow) > estimate(4, slow) > estimate(1, slow)
