"""Figures for print, from records alone: PNG, SVG and PDF, the same records giving the same bytes.

Each module beside this one draws one figure. matplotlib is imported by `draw_all`, not before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.analysis.series import Group, Record, differences, groups

if TYPE_CHECKING:
    from testbed.analysis.figures.drawing import Drawn


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure as files, with what it shows in words.

    ``svg`` is the picture without its caption, for pages that set the caption themselves. A
    figure that the data do not allow has no ``paths``, and its caption says what is missing.
    """

    name: str
    title: str
    caption: str
    paths: tuple[Path, ...]
    svg: bytes


def draw_all(records: Iterable[Record], folder: Path) -> list[Figure]:
    """Draw every figure into the folder and return them, also those that could not be drawn.

    Records that differ in more than nodes, rate and repeat get figures of their own, whose
    names say in what they differ. Without a single usable trial there are no figures.
    """
    from testbed.analysis.figures import drawing, links, speedup, step_time, training_time

    table: tuple[tuple[str, str, Callable[[Group], Drawn | str]], ...] = (
        ("training-time", "Training time against nodes", training_time.against_nodes),
        ("speedup", "Speed-up and efficiency against nodes", speedup.against_nodes),
        ("relative-time", "Time relative to one node", speedup.relative_time),
        ("time-vs-rate", "Training time against the rate of the links", training_time.against_rate),
        ("step-time", "Step time against its bound", step_time.against_bound),
        ("links", "Requested and verified rate", links.requested_and_verified),
    )
    worth = drawable(records)
    suffixes = _suffixes(worth)
    found = []
    for group, suffix, slug in zip(worth, suffixes, _slugs(suffixes), strict=True):
        for name, title, draw in table:
            if name == ("speedup" if group.shares_host else "relative-time"):
                continue
            told = f"{title} ({suffix})" if suffix else title
            file_name = f"{name}-{slug}" if suffix else name
            with drawing.style():
                drawn = draw(group)
                if isinstance(drawn, str):
                    found.append(
                        Figure(name=file_name, title=told, caption=drawn, paths=(), svg=b"")
                    )
                    continue
                if suffix:
                    drawn.caption = f"{drawn.caption} Only {suffix}."
                paths, svg = drawing.save(drawn, folder, file_name)
            found.append(
                Figure(name=file_name, title=told, caption=drawn.caption, paths=paths, svg=svg)
            )
    return found


def drawable(records: Iterable[Record]) -> list[Group]:
    """Return the groups that have at least one trial whose time may be shown."""
    return [group for group in groups(records) if group.data]


def _suffixes(worth: Sequence[Group]) -> list[str]:
    """Return for each group what sets it apart from the others, in words."""
    names = differences(worth)
    return [
        ", ".join(f"{name} {group.conditions.get(name, 'not recorded')}" for name in names)
        for group in worth
    ]


def _slugs(suffixes: Sequence[str]) -> list[str]:
    """Return what sets each group apart as part of a file's name: short, and never twice."""
    short = [re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] for text in suffixes]
    return [
        f"{text}-{short[:place].count(text) + 1}" if short.count(text) > 1 else text
        for place, text in enumerate(short)
    ]
