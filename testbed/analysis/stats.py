"""Summaries of repeated trials: the only place where raw times become medians and intervals.

The trial is the sample, never the step. An interval is a percentile bootstrap of the median
(Efron and Tibshirani 1993, chapter 13) with a fixed seed, so the same records give the same
figures. Few trials cannot be mended by a formula: `held_by_range` and `Estimate.remark` say so.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

CONFIDENCE = 0.95
RESAMPLES = 9_999
SEED = 20_240_501  # fixed: the same trials give the same interval, whoever draws it

TRIALS_FOR_A_LOOK = 3  # docs: METHOD, "Statistics"
TRIALS_FOR_A_CLAIM = 5
UNSTABLE_SPREAD = 0.10

Comparison = Literal["less", "more", "no difference shown", "too few trials"]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What repeated trials say about one quantity.

    ``low`` and ``high`` bound the 95 % bootstrap interval of the median; they are None where
    one trial gives none. ``spread`` is (largest - smallest) / median.
    """

    values: tuple[float, ...]
    median: float
    low: float | None
    high: float | None
    spread: float

    @property
    def n(self) -> int:
        """The number of trials."""
        return len(self.values)

    @property
    def unstable(self) -> bool:
        """Whether the trials differ too much, or are too few, for the median to be relied on."""
        return self.n < TRIALS_FOR_A_LOOK or self.spread > UNSTABLE_SPREAD

    @property
    def remark(self) -> str:
        """What a reader must know about this estimate, in words; empty if nothing."""
        said = []
        if self.n < TRIALS_FOR_A_LOOK:
            said.append(f"too few trials: {self.n}")
        if self.spread > UNSTABLE_SPREAD:
            said.append(f"trials spread over {100 * self.spread:.0f} % of the median")
        return f"unstable: {', '.join(said)}" if said else ""

    def below(self, other: Estimate) -> Comparison:
        """Return how this compares with another: "less" only if the intervals do not meet."""
        if min(self.n, other.n) < TRIALS_FOR_A_LOOK:
            return "too few trials"
        if self.high is not None and other.low is not None and self.high < other.low:
            return "less"
        if self.low is not None and other.high is not None and self.low > other.high:
            return "more"
        return "no difference shown"


def estimate(values: Sequence[float]) -> Estimate:
    """Return the median of one value per trial, with its interval and spread.

    Raises ValueError for no values at all: a cell without trials is a hole, not a zero.
    """
    if not values:
        raise ValueError("no trials: there is nothing to estimate")
    ordered = tuple(sorted(values))
    median = statistics.median(ordered)
    low, high = _interval(ordered)
    spread = (ordered[-1] - ordered[0]) / abs(median) if median else 0.0
    return Estimate(values=tuple(values), median=median, low=low, high=high, spread=spread)


@lru_cache(maxsize=4096)
def _interval(ordered: tuple[float, ...]) -> tuple[float | None, float | None]:
    if len(ordered) < 2:
        return None, None
    if ordered[0] == ordered[-1]:
        return ordered[0], ordered[0]
    import numpy as np  # late: scipy takes half a second that `testbed --help` need not wait for
    from scipy.stats import bootstrap

    found = bootstrap(
        (np.asarray(ordered),),
        np.median,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(SEED),
    )
    low, high = found.confidence_interval.low, found.confidence_interval.high
    # Interpolating between equal resamples may round beyond them by one digit in the last place.
    median = statistics.median(ordered)
    return (
        min(max(float(low), ordered[0]), median),
        max(min(float(high), ordered[-1]), median),
    )


def held_by_range(n: int) -> float | None:
    """Return how often the range of n trials holds the true median, or None from 6 trials on.

    Up to 5 trials the percentile bootstrap of the median can only return the smallest and the
    largest trial, and all n fall on one side of the true median with probability 2 x 2^-n.
    """
    return 1 - 2.0 ** (1 - n) if 2 <= n <= TRIALS_FOR_A_CLAIM else None


def interval_in_words(counts: Sequence[int]) -> str:
    """Return what the intervals of cells with these numbers of trials are worth."""
    if not counts:
        return ""
    fewest, most = min(counts), max(counts)
    n = f"n = {fewest}" if fewest == most else f"n = {fewest} to {most}"
    if most == 1:
        return f"{n} trial per point: no interval can be given"
    held = held_by_range(fewest)
    if held is not None:
        where = "" if fewest == most else f" where n = {fewest}"
        return (
            f"{n} trials per point: with so few the interval is their range, which holds the "
            f"true median {100 * held:.0f} % of the time{where}, not 95 %"
        )
    if fewest == 1:
        return f"{n} trials per point: points with one trial have no interval"
    return f"{n} trials per point"


def ratios(above: Mapping[object, float], below: Mapping[object, float]) -> list[float]:
    """Return above / below for each repeat that both have, in the order of the repeats."""
    shared = sorted((key for key in above if key in below), key=str)
    return [above[key] / below[key] for key in shared]
