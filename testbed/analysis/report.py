"""One offline HTML file about a sweep: the same records give the same bytes.

Nothing is fetched and no script runs, so it can be mailed, printed and read in twenty years.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from testbed.analysis import reproduce, tables, words
from testbed.analysis.answer import answers, heading_of
from testbed.analysis.figures import Figure, draw_all, drawable
from testbed.analysis.series import Group, Record, is_data, value_at
from testbed.analysis.stats import interval_in_words
from testbed.errors import TestbedError
from testbed.experiment import store
from testbed.files import write_whole

if TYPE_CHECKING:
    from markupsafe import Markup

    from testbed.experiment.config import Sweep

NAME = "report.html"
TEMPLATE = Path(__file__).with_name("report.html.j2")
WIDE_PT = 380  # of a figure in two columns (180 mm); one column is 255 pt (90 mm)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a folder says was asked for: its frozen sweep, as text and, if it can be read, parsed.

    A folder of single trials (results/runs) has none.
    """

    name: str
    content: bytes | None
    sweep: Sweep | None

    @property
    def text(self) -> str:
        """The file's text; what is not UTF-8 is replaced."""
        return "" if self.content is None else self.content.decode("utf-8-sig", "replace")

    @property
    def download(self) -> str:
        """The file itself as an address, so that a mailed report still has it."""
        if self.content is None:
            return ""
        return f"data:text/yaml;base64,{base64.b64encode(self.content).decode('ascii')}"


def write_report(sweep_folder: Path) -> Path:
    """Draw a sweep's figures, write its report.html, and return the report's path.

    Raises:
        ConfigError: a record cannot be read; says which, and what to do.
    """
    records = store.records(sweep_folder)
    figures = draw_all(records, sweep_folder / "figures")
    path = sweep_folder / NAME
    write_whole(path, render(sweep_folder, records, figures).encode())
    return path


def render(sweep_folder: Path, records: Sequence[Record], figures: Sequence[Figure]) -> str:
    """Return the report's HTML; reads the frozen sweep and which logs are there, writes nothing."""
    from jinja2 import Environment, StrictUndefined  # late: `testbed --help` need not wait

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["together"] = words.together
    asked = _asked(sweep_folder)
    groups = drawable(records)
    machine = tables.machine(records)
    columns, attempts = tables.attempts(records)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        name=asked.name,
        description=asked.sweep.description if asked.sweep else "",
        settings=[words.setting(group) for group in groups],
        facts=_facts(records, asked),
        answers=answers(records),
        nothing=_nothing(records),
        drawn=[_shown(figure, sweep_folder) for figure in figures if figure.paths],
        not_drawn=[figure for figure in figures if not figure.paths],
        setups=[
            (heading_of(group, groups), _worth(group), tables.setups(group)) for group in groups
        ],
        columns=columns,
        attempts=[(attempt, _logs(sweep_folder, attempt)) for attempt in attempts],
        links=tables.links(records),
        overhead=tables.overhead(records),
        machine=machine,
        changed=[(what, values) for what, values in machine if len(values) > 1],
        held=[(heading_of(group, groups), _held(group)) for group in groups],
        asked=asked,
        again=reproduce.steps(records, asked.name, asked.content is not None),
    )


def _asked(folder: Path) -> Asked:
    path = folder / store.FROZEN
    name = folder.resolve().name or "results"
    if not path.is_file():
        return Asked(name=name, content=None, sweep=None)
    from testbed.experiment.config import parse_sweep

    content = path.read_bytes()
    try:
        sweep = parse_sweep(content, source=f"{name}.yaml")
    except TestbedError:  # written by another version: its text is shown all the same
        return Asked(name=name, content=content, sweep=None)
    return Asked(name=sweep.name, content=content, sweep=sweep)


def _facts(records: Sequence[Record], asked: Asked) -> list[tuple[str, str, str]]:
    """Return what is said at a glance: (what, value, what qualifies it)."""
    last = {record["trial_id"]: record["status"] for record in records}
    planned = _planned(asked, last)
    counted = Counter(last.values())
    missing = len(planned - last.keys())
    total = len(last) + missing
    parts = [
        f"{counted[status]} {tables.STATUS_WORDS[status]}"
        for status in store.STATUSES[1:]
        if counted[status]
    ]
    if missing:
        parts.append(f"{missing} not run yet")
    again = len(records) - len(last)
    if again:
        parts.append(f"{again} repeated attempt{'s' if again > 1 else ''}")
    facts = [("Trials", f"{counted['ok']} of {total} ok", ", ".join(parts))]
    gated = [record for record in records if value_at(record, "verdict.status") in ("pass", "fail")]
    if gated:
        passed = sum(value_at(record, "verdict.status") == "pass" for record in gated)
        facts.append(
            ("Links verified", f"{passed} of {len(gated)}", "attempts, before and after training")
        )
    times = [(one["started_at"], one["ended_at"]) for one in records if _dated(one)]
    if times:
        first, end = min(begin for begin, _ in times), max(end for _, end in times)
        spent = words.seconds(sum(end - begin for begin, end in times))
        facts.append(("Measured", _day(first, end), f"{spent} of trials"))
    return facts


def _dated(record: Record) -> bool:
    return "started_at" in record and "ended_at" in record


def _day(first: float, end: float) -> str:
    """Return the day or days of measurement, in UTC, so that no reader's clock changes it."""
    days = [datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d") for at in (first, end)]
    return " to ".join(dict.fromkeys(days))


def _planned(asked: Asked, run: Iterable[str]) -> set[str]:
    """Return the trials that the frozen sweep asks for; none if it is not that of the records."""
    if asked.sweep is None:
        return set()
    try:
        planned = {trial.trial_id for trial in asked.sweep.trials(store.ANY_CORES)}
    except TestbedError:
        return set()
    run = set(run)
    return planned if not run or planned & run else set()


def _nothing(records: Sequence[Record]) -> str:
    """Return why there is no answer; "" if there is one."""
    if any(is_data(record) for record in records):
        return ""
    if not records:
        return "No trial has been run yet."
    counted = Counter(str(record["status"]) for record in records)
    told = words.listed(
        [f"{n} {tables.STATUS_WORDS.get(status, status)}" for status, n in sorted(counted.items())]
    )
    return (
        f"No attempt gave a time that may be shown ({told}), so there is no answer and no figure. "
        "The reasons stand with the trials below."
    )


def _shown(figure: Figure, folder: Path) -> dict[str, Any]:
    """Return what the page needs of a figure."""
    paths = [path.relative_to(folder).as_posix() for path in figure.paths]
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "svg": inlined(figure),
        "wide": _width_pt(figure.svg.decode()) > WIDE_PT,
        "files": [(Path(path).suffix[1:].upper(), quote(path)) for path in paths],
    }


def _width_pt(svg: str) -> float:
    found = re.search(r'viewBox="\S+ \S+ (\S+) \S+"', svg)
    return float(found[1]) if found else 0.0


def inlined(figure: Figure) -> Markup:
    """Return a figure's SVG to stand in a page: as wide as its place, its ids its own.

    matplotlib names glyphs and clip paths alike in every file, and styles ``*``; several
    pictures in one page would take each other's.
    """
    from markupsafe import Markup, escape

    prefix = f"fig-{figure.name}"
    svg = figure.svg.decode()
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\sid=")([^"]+")', rf"\1{prefix}-\2", svg)
    svg = re.sub(r'(href="#)([^"]+")', rf"\1{prefix}-\2", svg)
    svg = re.sub(r"(url\(#)([^)]+\))", rf"\1{prefix}-\2", svg)
    svg = re.sub(r"(<style[^>]*>)\s*\*\s*\{", rf"\1#{prefix} *{{", svg)
    opening = re.search(r"<svg\b[^>]*>", svg)
    if opening is None:
        return Markup("")
    tag = re.sub(r'\s(?:width|height)="[^"]*"', "", opening[0])
    label = escape(figure.title)
    tag = tag.replace("<svg", f'<svg id="{prefix}" role="img" aria-label="{label}"', 1)
    svg = re.sub(r"\n\s*", "\n", svg[opening.end() :]).strip()
    return Markup(f"{tag}{svg}")  # noqa: S704 - our own drawing; its title is escaped above


def _logs(folder: Path, attempt: tables.Attempt) -> str:
    """Return the address of an attempt's logs, or "" if they were not kept."""
    path = f"logs/{attempt.name}"
    return f"{path}/" if (folder / path).is_dir() else ""


def _worth(group: Group) -> str:
    """Return what the intervals are worth with so many trials."""
    counts = [found.n for setup in group.setups() if (found := group.time(*setup))]
    return f"Here {interval_in_words(counts)}."


def _held(group: Group) -> list[tuple[str, str]]:
    """Return what all trials of a group have in common, without what the manifest says."""
    machine = {"CPU", "host cores", "kernel", "virtualisation", "distribution", "testbed"}
    machine |= {"Python", "TensorFlow", "Keras", "Open vSwitch"}
    return [(name, value) for name, value in group.conditions.items() if name not in machine]
