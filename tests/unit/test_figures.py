"""Figures from records alone: which are drawn, what their captions say, and the same every time."""

from __future__ import annotations

import math
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from synthetic_records import failed, invalid, record, sweep, without

from testbed.analysis.figures import (
    Figure,
    draw_all,
    drawing,
    speedup,
    step_time,
    training_time,
)
from testbed.analysis.figures.drawing import apart
from testbed.analysis.series import Group, groups

MBIT = 1_000_000
NAMES = ["training-time", "speedup", "time-vs-rate", "step-time", "links"]


def drawn(records: list[dict[str, Any]], folder: Path) -> dict[str, Figure]:
    return {figure.name: figure for figure in draw_all(records, folder)}


def only(records: list[dict[str, Any]]) -> Group:
    (group,) = groups(records)
    return group


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Figure]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "FORMATS", ("png", "svg", "pdf"))
        return drawn(sweep(), tmp_path_factory.mktemp("figures"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw in one format where only captions and names are looked at: a third of the time."""
    monkeypatch.setattr(drawing, "FORMATS", ("svg",))


def test_a_whole_sweep_gives_all_five_figures_in_three_formats(whole: dict[str, Figure]) -> None:
    assert list(whole) == NAMES
    for figure in whole.values():
        assert [path.suffix for path in figure.paths] == [".png", ".svg", ".pdf"]
        signatures = [path.read_bytes()[:5] for path in figure.paths]
        assert signatures == [b"\x89PNG\r", b"<?xml", b"%PDF-"]


def test_pictures_have_at_least_200_dots_per_inch_at_print_width(whole: dict[str, Figure]) -> None:
    for figure in whole.values():
        content = figure.paths[0].read_bytes()
        width, _ = struct.unpack(">II", content[16:24])
        at = content.index(b"pHYs")
        per_meter, _ = struct.unpack(">II", content[at + 4 : at + 12])
        assert per_meter * 0.0254 >= 200
        assert width / per_meter * 1000 in (
            pytest.approx(drawing.SINGLE_MM, abs=0.5),
            pytest.approx(drawing.DOUBLE_MM, abs=0.5),
        )


def test_the_same_records_give_the_same_bytes(whole: dict[str, Figure], tmp_path: Path) -> None:
    """In another process too: element ids and dates are where pictures usually differ."""
    code = (
        "import sys; from pathlib import Path; from synthetic_records import sweep; "
        "from testbed.analysis.figures import draw_all; "
        "draw_all(sweep()[::-1], Path(sys.argv[1]))"
    )
    tests, root = Path(__file__).parent, Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{tests}:{root}", "TZ": "Asia/Tokyo"}
    subprocess.run((sys.executable, "-c", code, str(tmp_path)), env=environment, check=True)
    for figure in whole.values():
        for path in figure.paths:
            assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_numbers_in_captions_are_those_of_the_records(tmp_path: Path) -> None:
    records = [
        record(nodes=nodes, repeat=repeat, train_time_s=time + repeat / 100)
        for nodes, time in ((1, 10.0), (4, 25.0))
        for repeat in range(3)
    ]
    found = drawn(records, tmp_path)
    assert "At 10 Mbit/s 4 nodes take 2.50 times as long as one (25.0 s against 10.0 s)" in (
        found["training-time"].caption
    )
    assert "4 nodes reach a speed-up of 0.40 (efficiency 0.10)" in found["speedup"].caption


def test_every_caption_says_mode_backend_and_number_of_trials(whole: dict[str, Figure]) -> None:
    for figure in whole.values():
        assert "Isolated mode, lxc backend, 0.4 core per node" in figure.caption
        assert re.search(r"n = \d+", figure.caption)


def test_intervals_that_meet_are_not_called_a_difference(tmp_path: Path) -> None:
    records = [
        record(nodes=nodes, repeat=repeat, train_time_s=time)
        for nodes, times in ((1, (9.8, 10.0, 10.2)), (2, (9.7, 9.9, 10.1)))
        for repeat, time in enumerate(times)
    ]
    caption = drawn(records, tmp_path)["training-time"].caption
    assert "2 nodes take as long as one within the intervals" in caption
    assert "times as long" not in caption


def test_bounds_are_told_from_measurements(whole: dict[str, Figure]) -> None:
    assert "break-even, computed and not measured" in whole["time-vs-rate"].caption
    assert "The bound is computed, the points are measured." in whole["step-time"].caption


def test_the_break_even_rate_is_twice_the_gradient_over_one_nodes_step() -> None:
    records = [record(nodes=n, step_times_s=[0.2] * 5, repeat=r) for n in (1, 2) for r in range(3)]
    # 2 x 246 824 bytes x 8 / 0.2 s = 19.75 Mbit/s of payload, 20.65 Mbit/s of frames
    assert training_time.break_even_rate_bps(only(records)) == pytest.approx(20.64594e6, rel=1e-5)


@pytest.mark.parametrize("settings", [{"mode": "shared"}, {"scaling": "weak"}])
def test_no_break_even_is_claimed_where_its_formula_does_not_hold(settings: dict[str, str]) -> None:
    assert training_time.break_even_rate_bps(only(sweep(**settings))) is None


def test_the_bound_of_a_step_is_a_share_of_compute_and_a_ring() -> None:
    records = [record(nodes=n, step_times_s=[0.2] * 5) for n in (1, 4)]
    (bar,) = step_time._bars(only(records))
    assert bar.compute_s == pytest.approx(0.05)
    # 2 x 3/4 x 246 824 bytes x 8 / 9.5641 Mbit/s
    assert bar.communication_s == pytest.approx(0.30969, rel=1e-4)


def test_mode_shared_never_speaks_of_speed_ups(tmp_path: Path) -> None:
    found = drawn(sweep(mode="shared"), tmp_path)
    assert "relative-time" in found
    assert "speedup" not in found
    told = " ".join(f"{figure.name} {figure.title} {figure.caption}" for figure in found.values())
    assert not re.search("speed-?up|efficien", told, re.IGNORECASE)


def test_modes_are_never_on_one_figure(tmp_path: Path) -> None:
    rates = (10 * MBIT,)
    found = drawn(sweep(rates=rates) + sweep(rates=rates, mode="shared"), tmp_path)
    assert [name for name in found if name.startswith("training-time")] == [
        "training-time-mode-isolated",
        "training-time-mode-shared",
    ]
    assert found["training-time-mode-shared"].caption.endswith("Only mode shared.")


def test_figures_of_groups_with_long_names_do_not_overwrite_each_other(tmp_path: Path) -> None:
    records = [
        one
        for args in (["--long-option"] * 20 + ["1"], ["--long-option"] * 20 + ["2"])
        for one in sweep(nodes=(1,), workload="script", script={"sha256": "ab" * 32, "args": args})
    ]
    found = draw_all(records, tmp_path)
    names = [figure.name for figure in found]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) < 100


def test_only_one_node_is_drawn_and_the_rest_says_what_is_missing(tmp_path: Path) -> None:
    found = drawn(sweep(nodes=(1,)), tmp_path)
    assert found["training-time"].paths
    assert "only one node was measured" in found["training-time"].caption.lower()
    for name in NAMES[1:]:
        assert found[name].paths == ()
        assert found[name].caption.startswith("Not drawn: ")
    assert [path.name for path in tmp_path.iterdir()] == ["training-time.svg"]


def test_without_one_node_times_are_drawn_and_nothing_is_compared(tmp_path: Path) -> None:
    found = drawn(sweep(nodes=(2, 4)), tmp_path)
    assert found["training-time"].paths
    assert "no trial of one node" in found["training-time"].caption
    assert found["speedup"].paths == ()


@pytest.mark.parametrize("records", [[], [failed()], [invalid(), failed(nodes=1)]])
def test_without_any_usable_trial_there_are_no_figures(
    records: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert draw_all(records, tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_trial_changes_no_figure_but_is_counted(
    whole: dict[str, Figure], tmp_path: Path
) -> None:
    found = drawn([*sweep(), invalid(repeat=7), failed(repeat=8)], tmp_path)
    for name in NAMES[:-1]:
        assert found[name].svg == whole[name].svg
    assert "(one was)" in found["links"].caption


@pytest.mark.parametrize(
    "settings",
    [
        {"rates": (None,)},
        {"rates": (10 * MBIT, None)},
        {"rates": (10 * MBIT,), "repeats": 1},
        {"nodes": (1, 2, 4, 8, 16), "rates": (MBIT, 1_000 * MBIT), "repeats": 2},
        {"scaling": "weak"},
        {"noise": 0.3},
    ],
    ids=str,
)
def test_what_was_swept_partly_is_drawn(settings: dict[str, Any], tmp_path: Path) -> None:
    found = drawn(sweep(**settings), tmp_path)
    assert found["training-time"].paths
    assert found["speedup"].paths


def test_lines_that_end_early_are_named_in_one_legend(tmp_path: Path) -> None:
    records = [
        one
        for one in sweep(nodes=(1, 2, 4, 8))
        if (one["nodes"], one.get("rate_bps")) != (8, 10 * MBIT)
    ]
    with drawing.style():
        for draw in (training_time.against_nodes, speedup.against_nodes):
            page = draw(only(records))
            assert isinstance(page, drawing.Drawn)
            assert len(page.canvas.legends) == 1
    assert all(figure.paths for figure in drawn(records, tmp_path).values())


def test_one_node_is_drawn_once_whatever_the_rates() -> None:
    with drawing.style():
        page = training_time.against_nodes(only(sweep(rates=(None,))))
    assert isinstance(page, drawing.Drawn)
    (axes,) = page.canvas.axes
    medians = [line for line in axes.lines if list(line.get_xdata()) == [1]]
    assert {line.get_color() for line in medians} == {drawing.BLACK}


def test_unlimited_links_are_named_so(tmp_path: Path) -> None:
    caption = drawn(sweep(rates=(10 * MBIT, None)), tmp_path)["time-vs-rate"].caption
    assert "with unlimited links" in caption
    assert "Unlimited links stand apart from the scale" in caption


def test_a_script_without_steps_or_losses_is_drawn_by_its_time(tmp_path: Path) -> None:
    records = without(
        sweep(workload="script", script={"sha256": "ab" * 32, "args": []}),
        *("model", "step_times_s", "losses", "final_loss", "final_accuracy", "evaluations", "work"),
        *("global_batch_size", "per_replica_batch_size", "steps", "strategy", "bound"),
    )
    found = drawn(records, tmp_path)
    assert [name for name in NAMES if not found[name].paths] == ["step-time"]
    assert "lxc backend, 0.4 core per node, script" in found["training-time"].caption


def test_unstable_points_are_said_in_words(tmp_path: Path) -> None:
    records = [*sweep(rates=(10 * MBIT,)), record(nodes=2, repeat=9, train_time_s=90.0)]
    caption = drawn(records, tmp_path)["training-time"].caption
    assert re.search(r"Unstable: 2 nodes at 10 Mbit/s \(trials spread over \d+ % of", caption)


def test_a_dollar_sign_in_a_name_is_no_formula(tmp_path: Path) -> None:
    found = drawn(sweep(model="$\\frac{1}$", rates=(10 * MBIT,)), tmp_path)
    assert "$\\frac{1}$" in found["training-time"].caption


def test_caption_lines_fit_the_page_and_keep_units_with_their_numbers() -> None:
    with drawing.style():
        page = drawing.canvas(drawing.SINGLE_MM, 60)
        text = "at 10 Mbit/s 4 nodes take 1.86 times as long as one, which takes 6.25 s; " * 5
        lines = drawing.wrapped(page, text.strip(), 80 * drawing.MM)
        assert len(lines) > 5
        assert not any(re.match(r"Mbit|s;|nodes", line) for line in lines)
        assert max(map(len, lines)) * 0.9 < 80  # about 1 mm a character at 7 pt


@pytest.mark.parametrize(
    ("levels", "placed"),
    [
        ([], []),
        ([5.0], [5.0]),
        ([0.0, 100.0], [0.0, 100.0]),
        ([10.0, 10.0], [5.0, 15.0]),
        ([10.0, 12.0, 50.0], [6.0, 16.0, 50.0]),
        ([0.0, 9.0, 9.0], [-4.0, 6.0, 16.0]),
    ],
)
def test_names_of_lines_are_moved_apart_as_little_as_need_be(
    levels: list[float], placed: list[float]
) -> None:
    assert all(math.isclose(a, b) for a, b in zip(apart(levels, 10.0), placed, strict=True))


def test_importing_the_figures_does_not_import_matplotlib_yet() -> None:
    code = (
        "import sys, testbed.analysis.figures; "
        "sys.exit(any(name in sys.modules for name in ('matplotlib', 'scipy', 'pandas')))"
    )
    root = str(Path(__file__).parents[2])
    assert subprocess.run((sys.executable, "-c", code), cwd=root, check=False).returncode == 0
