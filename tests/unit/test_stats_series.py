"""What may be drawn together, and what is no data at all."""

from __future__ import annotations

from typing import Any

import pytest
from synthetic_records import MANIFEST, failed, invalid, record, sweep

from testbed.analysis.figures import drawable
from testbed.analysis.series import Group, differences, groups, rate_label

MBIT = 1_000_000


def only(records: list[dict[str, Any]]) -> Group:
    (group,) = drawable(records)
    return group


def test_a_clean_sweep_is_one_group_with_every_setup() -> None:
    group = only(sweep())
    assert group.nodes == [1, 2, 4]
    assert group.rates == [10 * MBIT, 30 * MBIT, 100 * MBIT]
    assert group.setups()[0] == (1, None)
    assert len(group.setups()) == 7


@pytest.mark.parametrize(
    "changed",
    [
        {"mode": "shared"},
        {"backend": "netns"},
        {"workload": "mnist"},
        {"model": "mlp"},
        {"strategy": "parameter-server"},
        {"scaling": "weak"},
        {"global_batch_size": 512},
        {"steps": 99},
        {"compute": {"cpu_cores": 0.2, "threads": 1}},
        {"manifest": {**MANIFEST, "tensorflow": "2.22.0"}},
        {"manifest": {**MANIFEST, "kernel": "6.19.0"}},
        {"manifest": {**MANIFEST, "cpu_model": "another"}},
        {"manifest": {**MANIFEST, "testbed": "0.2.0"}},
        {"work": {"gradient_bytes": 246_824, "optimizer": "adam", "learning_rate": 0.05}},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_what_differs_in_more_than_nodes_and_rate_is_apart(changed: dict[str, Any]) -> None:
    found = drawable([*sweep(), *(record(nodes=n, repeat=3, **changed) for n in (1, 2, 4))])
    assert len(found) == 2
    assert differences(found)


@pytest.mark.parametrize("changed", [{"delay_us": 20_000}, {"datapath": "kernel"}, {"loss": 0.01}])
def test_kinds_of_links_are_apart_and_share_the_trials_of_one_node(changed: dict[str, Any]) -> None:
    records = sweep()
    other = [record(nodes=2, repeat=repeat) for repeat in range(3)]
    for one in other:
        one["network"].update(changed)
    found = drawable(records + other)
    assert len(found) == 2
    assert all(group.time(1) is not None for group in found)
    assert {len(group.cell(2, 10 * MBIT)) for group in found} == {3}


def test_names_tell_groups_apart_with_no_more_than_it_takes() -> None:
    found = drawable(sweep() + sweep(mode="shared"))  # they differ in the budget too
    assert differences(found) == ["mode"]


def test_a_long_hash_is_told_by_its_first_digits() -> None:
    group = only(sweep(script={"sha256": "cd" * 32, "args": ["a"]}, workload="script"))
    assert group.conditions["script"] == '{"args": ["a"], "sha256": "cdcdcdcdcdcd"}'


def test_another_git_commit_alone_is_no_other_group() -> None:
    later = {**MANIFEST, "git_commit": "fedcba987654"}
    assert len(drawable([*sweep(), record(repeat=9, manifest=later)])) == 1


def test_invalid_and_failed_trials_are_no_data() -> None:
    found = only([*sweep(), invalid(repeat=7), failed(repeat=8)])
    assert [one["repeat"] for one in found.cell(2, 10 * MBIT)] == [0, 1, 2]


@pytest.mark.parametrize("status", ["failed", "invalid", "non_converged"])
def test_only_ok_trials_have_a_time_to_show(status: str) -> None:
    assert drawable([record(status=status)]) == []


def test_an_ok_trial_without_a_good_verdict_is_no_data() -> None:
    assert drawable([record(verdict={"status": "fail"})]) == []
    without = record()
    del without["verdict"]
    assert drawable([without]) == []


def test_steps_of_a_run_that_did_not_converge_are_shown() -> None:
    group = only([*sweep(), record(repeat=5, status="non_converged")])
    step, time = group.step(2, 10 * MBIT), group.time(2, 10 * MBIT)
    assert step is not None
    assert time is not None
    assert (step.n, time.n) == (4, 3)


def test_a_trial_that_failed_early_makes_no_group_of_its_own() -> None:
    early = failed(repeat=8)
    del early["network"]
    assert len(groups([*sweep(), early])) == 1


def test_every_record_is_in_some_group() -> None:
    records = [*sweep(), failed(repeat=8), invalid(repeat=7), *sweep(mode="shared")]
    found = {id(one) for group in groups(records) for one in group.records}
    assert found == {id(one) for one in records}


def test_ratios_pair_trials_of_one_repeat() -> None:
    records = [
        record(nodes=nodes, repeat=repeat, train_time_s=time)
        for nodes, repeat, time in ((1, 0, 10.0), (1, 1, 20.0), (2, 0, 5.0), (2, 1, 8.0), (2, 2, 1))
    ]
    found = only(records).speedup(2, 10 * MBIT)
    assert found is not None
    assert found.values == (2.0, 2.5)  # 10/5 and 20/8; repeat 2 has no trial of one node


def test_weak_scaling_compares_steps_and_counts_the_work() -> None:
    records = [
        record(nodes=nodes, scaling="weak", step_times_s=[step] * 5)
        for nodes, step in ((1, 0.2), (4, 0.25))
    ]
    group = only(records)
    gained, efficient = group.speedup(4, 10 * MBIT), group.efficiency(4, 10 * MBIT)
    assert gained is not None
    assert efficient is not None
    assert gained.median == pytest.approx(3.2)  # 4 x 0.2 / 0.25
    assert efficient.median == pytest.approx(0.8)


def test_mode_shared_has_no_speedup() -> None:
    group = only(sweep(mode="shared"))
    assert group.speedup(4, 10 * MBIT) is None
    assert group.efficiency(4, 10 * MBIT) is None
    assert group.relative_time(4, 10 * MBIT) is not None


@pytest.mark.parametrize(
    ("rate_bps", "label"),
    [
        (10 * MBIT, "10 Mbit/s"),
        (1_000 * MBIT, "1 Gbit/s"),
        (2_500_000, "2500 kbit/s"),
        (300, "300 bit/s"),
        (None, "unlimited"),
    ],
)
def test_rates_are_told_as_readers_expect_them(rate_bps: int | None, label: str) -> None:
    assert rate_label(rate_bps) == label
