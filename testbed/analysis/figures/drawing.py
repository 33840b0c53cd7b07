"""How all figures look and are saved: print sizes, colours that everybody can tell apart.

Widths are those of a thesis or a two-column paper; no text is smaller than 7 pt at that size.
Colours are those of Okabe and Ito (2008), each with a marker of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator
from matplotlib.transforms import Bbox, ScaledTranslation

from testbed.analysis import words
from testbed.analysis.stats import Estimate
from testbed.files import write_whole

FORMATS = ("png", "svg", "pdf")
MM = 1 / 25.4  # inches
SINGLE_MM = 90.0
DOUBLE_MM = 180.0
DPI = 300

BLACK = "#000000"
GREY = "#5f5f5f"
BAND = "#d9d9d9"
# Okabe and Ito without yellow, which white paper swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = ("-", "--", ":", "-.")

BESIDE_PT = 5.5  # single trials stand this far right of their median, on any axis

CAPTION_PT = 7.0
_LINE_MM = CAPTION_PT * 1.25 * 25.4 / 72

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same picture on every machine
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "svg.hashsalt": "testbed",  # element ids would otherwise differ from run to run
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "savefig.facecolor": "white",
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
}
_METADATA = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
}


@dataclass
class Drawn:
    """A canvas with room left below for its caption."""

    canvas: Canvas
    caption: str


@contextmanager
def style() -> Iterator[None]:
    """Draw and save within this, so that nobody's own settings change the picture."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)  # type: ignore[arg-type]  # the stubs list every key
        yield


def canvas(width_mm: float, height_mm: float) -> Canvas:
    """Return an empty page of the size that it will have in print."""
    made = Canvas(figsize=(width_mm * MM, height_mm * MM), dpi=DPI)
    FigureCanvasAgg(made)
    made.set_layout_engine("constrained", w_pad=0.03, h_pad=0.03)
    return made


def look(index: int) -> tuple[str, str, str]:
    """Return colour, marker and line style of the index-th line; they stay distinct to 24."""
    return (
        COLOURS[index % len(COLOURS)],
        MARKERS[index % len(MARKERS)],
        LINES[index // len(COLOURS) % len(LINES)],
    )


def save(drawn: Drawn, folder: Path, name: str) -> tuple[tuple[Path, ...], bytes]:
    """Write the figure in every format with its caption below it; also return it without.

    The page grows downwards for the caption; the plot keeps its size.
    """
    page = drawn.canvas
    width, height = page.get_size_inches()
    bare = _rendered(page, "svg")
    lines = wrapped(page, drawn.caption, width - 2 * MM)
    below = (len(lines) * _LINE_MM + 2.5) * MM
    total = height + below
    page.set_size_inches(width, total)
    engine = page.get_layout_engine()
    if engine is not None:
        engine.set(rect=(0, below / total, 1, height / total))  # type: ignore[call-arg]
    page.text(
        1.0 * MM / width,
        (below - 1.5 * MM) / total,
        "\n".join(lines),
        fontsize=CAPTION_PT,
        linespacing=1.25,
        va="top",
        ha="left",
    ).set_in_layout(False)
    page.draw_without_rendering()
    page.set_layout_engine("none")  # it stands now; each format would work it out again
    paths = []
    for kind in FORMATS:
        path = folder / f"{name}.{kind}"
        write_whole(path, _rendered(page, kind))
        paths.append(path)
    return tuple(paths), bare


def wrapped(page: Canvas, text: str, width_in: float) -> list[str]:
    """Return the text in lines that are no wider than this when set as a caption, in inches."""
    font = FontProperties(family=mpl.rcParams["font.family"], size=CAPTION_PT)
    renderer = FigureCanvasAgg(page).get_renderer()  # type: ignore[no-untyped-call]
    lines: list[str] = []
    for word in words.together(text).split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        wide, _, _ = renderer.get_text_width_height_descent(longer, font, ismath=False)
        if lines and wide / page.dpi <= width_in:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _rendered(page: Canvas, kind: str) -> bytes:
    written = BytesIO()
    width, height = page.get_size_inches()
    page.savefig(
        written,
        format=kind,
        dpi=DPI,
        metadata=_METADATA[kind],
        bbox_inches=Bbox.from_extents(0, 0, width, height),
    )
    return written.getvalue()


def points(axes: Axes, x: float, found: Estimate, colour: str, marker: str) -> None:
    """Draw one estimate: its median with its interval, and right of it each trial, small."""
    if found.low is not None and found.high is not None:
        axes.errorbar(
            [x],
            [found.median],
            yerr=[[found.median - found.low], [found.high - found.median]],
            color=colour,
            elinewidth=1.0,
            capsize=2.5,
            capthick=0.8,
            linestyle="none",
            zorder=4,
        )
    axes.plot([x], [found.median], marker=marker, color=colour, zorder=5)
    page = axes.get_figure(root=True)
    if found.n > 1 and page is not None:
        axes.plot(
            [x] * found.n,
            found.values,
            linestyle="none",
            marker=marker,
            markersize=2.2,
            markerfacecolor="white",
            markeredgecolor=colour,
            markeredgewidth=0.5,
            zorder=4.5,
            transform=axes.transData + ScaledTranslation(BESIDE_PT / 72, 0, page.dpi_scale_trans),
        )


def doubling(nodes: Sequence[int]) -> bool:
    """Whether numbers of nodes are drawn on a log axis: so many that small ones would crowd."""
    return max(nodes) > 8


def node_axis(axes: Axes, nodes: Sequence[int], *, margin: float = 0.0) -> None:
    """Put a tick at every number of nodes that was measured, and nowhere else."""
    if doubling(nodes):
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(nodes)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("Nodes")
    if doubling(nodes):
        axes.set_xlim(min(nodes) / 1.2, max(nodes) * 1.2)
    else:
        reach = 0.06 * max(max(nodes) - min(nodes), 1) + margin
        axes.set_xlim(min(nodes) - reach, max(nodes) + reach)


def value_axis(axes: Axes, values: Sequence[float], *, log: bool | None = None) -> None:
    """Start at zero, or draw logarithmically where a line would hide on the floor."""
    low, high = min(values), max(values)
    if log or (log is None and high > 12 * low):
        axes.set_yscale("log")
        axes.set_ylim(low / 1.35, high * 1.35)
        plain_log_ticks(axes, "y", low / 1.35, high * 1.35)
    else:
        axes.set_ylim(0, high * 1.08)


def plain_log_ticks(axes: Axes, which: str, low: float, high: float) -> None:
    """Label a log axis with plain numbers: 1, 2, 3, 4, 6, 8; 1, 2, 5; or decades; by its range."""
    steps: tuple[int, ...] = (1, 2, 5) if high / low < 200 else (1,)
    if high / low < 20:
        steps = (1, 2, 3, 4, 6, 8)
    decades = range(-9, 13)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


@dataclass(frozen=True, kw_only=True)
class LineName:
    """Where a line ends, what it is called and how it looks."""

    x: float
    y: float
    text: str
    colour: str
    marker: str = "o"
    line: Any = "-"  # as matplotlib takes it


def name_lines(axes: Axes, names: Sequence[LineName]) -> None:
    """Name each line right of its end; where some end earlier than others, above, once."""
    if len({name.x for name in names}) <= 1:
        _name_at_ends(axes, names)
        return
    page = axes.get_figure(root=True)
    if page is None or page.legends:
        return
    handles = [
        Line2D([], [], color=name.colour, marker=name.marker, linestyle=name.line, label=name.text)
        for name in names
    ]
    columns = 3 if page.get_size_inches()[0] < 1.5 * SINGLE_MM * MM else 6
    page.legend(
        handles=handles,
        loc="outside upper center",
        ncols=min(columns, len(handles)),
        columnspacing=1.2,
        handlelength=2.4,
    )


def _name_at_ends(axes: Axes, names: Sequence[LineName]) -> None:
    page = axes.get_figure(root=True)
    if page is None:
        raise ValueError("these axes are on no page")
    page.draw_without_rendering()  # points can be compared in pixels only once the layout stands
    ordered = sorted(names, key=lambda name: name.y)
    levels = [float(axes.transData.transform((name.x, name.y))[1]) for name in ordered]
    point = page.dpi / 72
    for name, level, placed in zip(ordered, levels, apart(levels, 9.0 * point), strict=True):
        axes.annotate(
            name.text,
            xy=(1, level_in_axes(axes, level)),
            xycoords="axes fraction",
            xytext=(4, (placed - level) / point),
            textcoords="offset points",
            color=name.colour,
            fontsize=7.5,
            va="center",
            ha="left",
            annotation_clip=False,
        )


def level_in_axes(axes: Axes, level: float) -> float:
    """Return a height in pixels as a fraction of the axes: 0 at their floor, 1 at their top."""
    return float(axes.transAxes.inverted().transform((0, level))[1])


def apart(levels: Sequence[float], gap: float) -> list[float]:
    """Return rising levels moved as little as need be to lie at least a gap apart."""
    clusters: list[tuple[float, int]] = []  # (middle, number of levels)
    for level in levels:
        middle, size = level, 1
        while clusters:
            before, held = clusters[-1]
            if middle - before >= gap * (size + held) / 2:
                break
            clusters.pop()
            middle = (middle * size + before * held) / (size + held)
            size += held
        clusters.append((middle, size))
    return [
        middle + (place - (size - 1) / 2) * gap
        for middle, size in clusters
        for place in range(size)
    ]
