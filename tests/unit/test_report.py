"""The report: what it claims, what it refuses to claim, and that it stands alone."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from synthetic_records import failed, invalid, record, sweep, without

from testbed.analysis import reproduce, tables
from testbed.analysis.answer import answers
from testbed.analysis.figures import Figure
from testbed.analysis.report import inlined, render, write_report
from testbed.analysis.series import groups
from testbed.analysis.words import together
from testbed.experiment import store

SWEEP = b"""\
format: 1
name: small
description: Is <more> & more better?
cpu: 0.4
matrix: {nodes: [1, 2], bandwidth: [10mbit]}
"""
VOID = {"meta", "br", "path", "use", "rect", "line", "link", "img"}


class Page(HTMLParser):
    """What is wrong with a page's structure, and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        assert tag != "script"
        assert not any(name.startswith("on") for name in values)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.addresses += [
            values[key] or "" for key in ("href", "xlink:href", "src") if key in values
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def said(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


def page(folder: Path, records: list[dict[str, Any]], figures: tuple[Figure, ...] = ()) -> Page:
    return Page(render(folder, records, figures))


def verdict(records: list[dict[str, Any]]) -> str:
    (answer,) = answers(records)
    return answer.verdict


def figure(name: str, title: str = "A title") -> Figure:
    svg = (
        '<?xml version="1.0"?>\n<svg xmlns:xlink="x" width="255pt" height="9pt" '
        'viewBox="0 0 255 9">\n <metadata>http://purl.org</metadata>\n<!-- a label -->\n'
        '<defs><style type="text/css">*{stroke-linecap: butt}</style></defs>\n'
        '<g id="axes_1"><defs><path id="m1" d="M 0 0"/></defs>\n'
        '<use xlink:href="#m1" clip-path="url(#p1)"/></g><clipPath id="p1"/>\n</svg>\n'
    )
    return Figure(name=name, title=title, caption="c", paths=(), svg=svg.encode())


def test_a_whole_sweep_becomes_one_page_that_stands_alone(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_bytes(SWEEP)
    for one in sweep(nodes=(1, 2), rates=(10_000_000,)):
        store.save(tmp_path, one)
    path = write_report(tmp_path)
    first = path.read_bytes()
    assert path == tmp_path / "report.html"
    assert write_report(tmp_path).read_bytes() == first
    found = Page(first.decode())
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    for address in found.addresses:
        if address.startswith("#"):
            assert address[1:] in found.ids
        elif not address.startswith("data:text/yaml;base64,"):
            assert (tmp_path / address).exists(), address
    assert "Is <more> & more better?" in found.said
    assert "git checkout 0123456789abcdef" in found.said
    assert "sudo make sweep CONFIG=small.yaml" in found.said
    assert SWEEP.decode().splitlines()[3] in found.said
    assert first.decode().count("<svg ") >= 4
    assert not re.search(r"url\((?!#fig-)|@import|<iframe", first.decode())


def test_the_answer_names_the_fastest_setup_and_what_it_costs() -> None:
    told = verdict(sweep(repeats=5))
    assert told.startswith("4 nodes at 100 Mbit/s trained fastest, ")
    assert "a speed-up of 2." in told
    assert "over one emulated 0.4-core node" in told
    assert "2 nodes at 100 Mbit/s make more of each node" in told


def test_the_answer_says_that_nothing_was_faster() -> None:
    told = verdict(sweep(rates=(1_000_000, 2_000_000)))
    assert told.startswith("No setup was faster than one node; the closest to it, ")
    assert re.search(r"took \d+\.\d+ times as long", told)


def test_overlapping_intervals_are_not_called_a_difference() -> None:
    alike = [
        record(nodes=nodes, repeat=repeat, train_time_s=time)
        for nodes, times in ((1, (5.0, 6.0, 7.0)), (2, (4.9, 5.5, 6.9)))
        for repeat, time in enumerate(times)
    ]
    (answer,) = answers(alike)
    assert answer.verdict == (
        "No setup was shown to be faster than one node; "
        "2 nodes at 10 Mbit/s cannot be told apart from it."
    )
    assert answer.points == (
        "2 nodes: not told apart from one node at 10 Mbit/s (0.98 times as long).",
    )


def test_single_trials_are_not_compared() -> None:
    (answer,) = answers(sweep(repeats=1))
    assert answer.verdict.startswith("Too few trials to say whether any setup is faster")
    assert "1 trial of each setup: too few to compare" in " ".join(answer.cautions)


def test_what_cannot_be_told_apart_from_the_fastest_is_named() -> None:
    times = {1: (9.0, 9.1, 9.2), 2: (5.0, 5.2, 5.4), 4: (4.9, 5.1, 5.3)}
    told = verdict(
        [
            record(nodes=nodes, repeat=repeat, train_time_s=time)
            for nodes, own in times.items()
            for repeat, time in enumerate(own)
        ]
    )
    assert "4 nodes at 10 Mbit/s had the shortest median time" in told
    assert "; 2 nodes at 10 Mbit/s cannot be told apart from it." in told
    assert "fastest" not in told


@pytest.mark.parametrize("faster", [False, True])
def test_mode_shared_never_speaks_of_speed_ups(tmp_path: Path, faster: bool) -> None:
    shared = sweep(mode="shared")
    if faster:
        shared = [one | {"train_time_s": one["train_time_s"] / one["nodes"] ** 2} for one in shared]
    text = render(tmp_path, shared, ())
    assert "speed-up" not in text.lower()
    assert "speedup" not in text.lower()
    assert "efficiency" not in text.lower()
    assert "these times show overhead only" in Page(text).said.replace("\xa0", " ")


def test_weak_scaling_compares_work_per_second() -> None:
    (answer,) = answers(sweep(scaling="weak"))
    assert answer.verdict.startswith("4 nodes at 100 Mbit/s did the most work per second")
    assert any("N times the work" in caution for caution in answer.cautions)


def test_groups_that_differ_get_an_answer_each() -> None:
    found = answers(sweep() + sweep(mode="shared"))
    assert [one.question for one in found] == [
        "Which setup is worth it?",
        "What do more nodes cost?",
    ]
    assert all(one.heading.startswith("mode ") for one in found)


def test_invalid_and_failed_attempts_are_listed_with_reasons_and_are_no_data(
    tmp_path: Path,
) -> None:
    bad = invalid(nodes=4, rate_bps=10_000_000)
    again = record(nodes=4, rate_bps=10_000_000, attempt=2)
    lost = failed(nodes=2, rate_bps=10_000_000)
    told = page(tmp_path, [*sweep(nodes=(1,)), bad, again, lost]).said
    assert "link n1 -> n2 before: 570.0 Mbit/s, expected 9.6" in told
    assert "n2: <Killed> & gone, last line: MemoryError" in told
    assert f"{bad['trial_id']}-a1" in told
    assert f"{bad['trial_id']}-a2" in told
    assert "4 of 5 ok 1 failed, 1 repeated attempt" in told
    (group,) = (one for one in groups([*sweep(nodes=(1,)), bad, again]) if one.data)
    assert [row[2].text for row in tables.setups(group).rows] == ["3", "1"]


@pytest.mark.parametrize("records", [[], [failed()], [invalid(), failed(repeat=1)]])
def test_without_a_single_usable_trial_the_report_says_so(
    tmp_path: Path, records: list[dict[str, Any]]
) -> None:
    for one in records:
        store.save(tmp_path, one)
    told = Page(write_report(tmp_path).read_text()).said
    expected = "No attempt gave a time that may be shown" if records else "No trial has been run"
    assert expected in told


@pytest.mark.parametrize(
    "records",
    [
        sweep(nodes=(1,)),
        sweep(nodes=(2, 4)),
        sweep(rates=(None,)),
        sweep(rates=(10_000_000,)),
        sweep(repeats=1),
        [
            one | {"workload": "script", "script": {"sha256": "ab", "args": ["--steps", "5"]}}
            for one in without(
                sweep(repeats=2),
                *("losses", "final_loss", "final_accuracy", "step_times_s", "work", "bound"),
                *("model", "strategy", "scaling", "steps", "global_batch_size"),
            )
        ],
        without(sweep(), "manifest", "verdict", "overhead_s", "started_at", "repeat"),
        [one | {"status": "non_converged"} for one in sweep()],
    ],
    ids=["one", "no-one", "unlimited", "one-rate", "single", "script", "bare", "non-converged"],
)
def test_odd_folders_still_give_a_whole_page(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    found = page(tmp_path, records)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert "None" not in found.said.replace("None of it is in a training time", "")
    assert "nan" not in found.said.split()


def test_trials_that_the_sweep_still_lacks_are_counted(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_bytes(SWEEP)
    assert "0 of 6 ok 6 not run yet" in page(tmp_path, []).said


def test_a_sweep_file_of_another_version_is_shown_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_bytes(b"format: 9\nname: <later>\n")
    told = page(tmp_path, sweep()).said
    assert "format: 9 name: <later>" in told
    assert f"CONFIG={tmp_path.name}.yaml" in told


def test_manifests_that_differ_are_pointed_out(tmp_path: Path) -> None:
    records = sweep()
    records[0]["manifest"]["kernel"] = "6.19.0"
    told = page(tmp_path, records).said
    assert "Not all attempts were made under the same conditions: Kernel" in told
    assert "6.19.0: 1" in told
    assert "under the same conditions" not in page(tmp_path, sweep()).said


def test_pictures_in_one_page_share_no_ids() -> None:
    one, two = (str(inlined(figure(name))) for name in ("one", "two"))
    assert set(re.findall(r'id="([^"]+)"', one)).isdisjoint(re.findall(r'id="([^"]+)"', two))
    assert 'xlink:href="#fig-one-m1"' in one
    assert "url(#fig-one-p1)" in one
    assert "#fig-one *{stroke-linecap" in one
    assert "width=" not in one
    assert "purl.org" not in one
    assert "<?xml" not in one


def test_a_pictures_title_is_escaped() -> None:
    assert 'aria-label="&lt;b&gt; &#34;x&#34;"' in str(inlined(figure("a", '<b> "x"')))


def test_numbers_keep_their_units_on_one_line() -> None:
    assert together("4 nodes at 10 Mbit/s: 3.1 s, 56 % in 2 steps") == (
        "4\xa0nodes at 10\xa0Mbit/s: 3.1\xa0s, 56\xa0% in 2 steps"
    )


def test_links_are_summed_up_by_rate_and_test() -> None:
    found = tables.links([*sweep(nodes=(2,), rates=(10_000_000,)), invalid(repeat=9)])
    pair, ring = found.rows
    assert [cell.text for cell in pair[:4]] == ["10 Mbit/s", "alone (pairs)", "12", "9.564 Mbit/s"]
    assert pair[-1].text == "-5 to +3 %"
    assert ring[-1].text == "-9 to +3 %"
    assert all("570" not in cell.text for row in found.rows for cell in row)


def test_overhead_is_the_median_of_each_phase_in_order() -> None:
    records = [
        record(nodes=1, repeat=repeat, overhead_s={"teardown": 0.1, "zeal": 1.0, "push": time})
        for repeat, time in enumerate((0.5, 9.0, 0.7))
    ]
    rows = [[cell.text for cell in row] for row in tables.overhead(records).rows]
    assert rows[:4] == [
        ["push", "0.70 s"],
        ["teardown", "0.10 s"],
        ["zeal", "1.00 s"],
        ["all of it", "1.80 s"],
    ]


def test_the_bound_of_a_step_is_computation_and_exchange() -> None:
    (group,) = groups(sweep(nodes=(1, 2), rates=(10_000_000,)))
    one = group.step(1)
    assert one is not None
    # On paper: half of one node's step, and 2 x 1/2 x 246 824 bytes at 9.564 Mbit/s.
    expected = one.median / 2 + 246_824 * 8 / (10e6 * 1448 / 1514)
    assert tables.step_bound_s(group, 2, 10_000_000) == pytest.approx(expected)
    assert tables.step_bound_s(group, 1, None) is None


def trial(**changed: Any) -> dict[str, Any]:
    described = {
        "nodes": 2,
        "switch": "openvswitch",
        "memory_bytes": 2**31,
        "mode": "isolated",
        "backend": "lxc",
        "workload": "fashion-mnist",
        "repeat": 0,
        "seed": 1,
        "rate_bps": 10_000_000,
        "cpu_cores": 0.4,
        "model": "lenet5",
        "strategy": "multi-worker-mirrored",
        "scaling": "strong",
        "global_batch_size": 256,
        "steps": 25,
        "optimizer": "adam",
        "learning_rate": 0.003,
        "evaluate_every": 0,
    }
    return {key: value for key, value in (described | changed).items() if value is not None}


def test_single_trials_are_reproduced_by_their_own_commands() -> None:
    found = reproduce.steps([record(trial=trial())], "runs", has_sweep=False)
    assert found.commands[-1] == (
        "sudo .venv/bin/testbed run --nodes 2 --bw 10mbit --cpu 40% --mem 2G "
        "--switch openvswitch --mode isolated --backend lxc --seed 1 --workload fashion-mnist "
        "--model lenet5 --strategy multi-worker-mirrored --batch 256 --steps 25"
    )


def test_a_scripts_arguments_are_quoted() -> None:
    script = {"file": "my train.py", "sha256": "ab", "args": ["--x", "$(id)"]}
    described = trial(script=script, model=None, strategy=None, global_batch_size=None, steps=None)
    found = reproduce.steps([record(trial=described)], "runs", has_sweep=False)
    assert found.commands[-1].endswith("--seed 1 --script 'my train.py' -- --x '$(id)'")


@pytest.mark.parametrize("changed", [{"scenario_sha256": "ab"}, {"learning_rate": 0.5}])
def test_what_no_command_line_can_say_is_named(changed: dict[str, Any]) -> None:
    one = record(trial=trial(**changed))
    found = reproduce.steps([one], "runs", has_sweep=False)
    assert [command for command in found.commands if "run" in command] == []
    assert any(one["trial_id"] in remark for remark in found.remarks)


def test_changes_that_no_commit_holds_are_said() -> None:
    one = record()
    one["manifest"]["git_commit"] = "0123456789ab+changes"
    found = reproduce.steps([one], "quick", has_sweep=True)
    assert found.commands[0] == "git checkout 0123456789ab"
    assert "no commit holds" in found.remarks[0]
