"""Medians, intervals and ratios, against numbers worked out on paper."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from testbed.analysis.stats import estimate, held_by_range, interval_in_words, ratios

times = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=12)


def test_no_trials_are_a_hole_and_not_a_zero() -> None:
    with pytest.raises(ValueError, match="nothing to estimate"):
        estimate([])


def test_one_trial_has_no_interval_and_is_called_too_few() -> None:
    found = estimate([4.0])
    assert (found.median, found.low, found.high) == (4.0, None, None)
    assert found.remark == "unstable: too few trials: 1"


@pytest.mark.parametrize("values", [[3.0, 1.0], [3.0, 1.0, 2.0], [5.0, 1.0, 2.0, 3.0, 4.0]])
def test_up_to_five_trials_the_interval_is_their_range(values: list[float]) -> None:
    found = estimate(values)
    assert (found.low, found.high) == (min(values), max(values))


def test_with_many_trials_the_interval_leaves_the_extremes() -> None:
    values = [float(value) for value in range(1, 31)]
    found = estimate(values)
    # Order statistics 10 and 21 are the exact 95 % interval of a median of 30 (binomial).
    assert found.low == pytest.approx(10, abs=1.5)
    assert found.high == pytest.approx(21, abs=1.5)


@pytest.mark.parametrize(("n", "held"), [(2, 0.5), (3, 0.75), (4, 0.875), (5, 0.9375)])
def test_what_a_range_holds_is_worked_out(n: int, held: float) -> None:
    assert held_by_range(n) == held


@pytest.mark.parametrize("n", [1, 6])
def test_no_claim_is_made_for_the_range_of_other_numbers(n: int) -> None:
    assert held_by_range(n) is None


@given(times)
@example([1.0, 5120.348089268496])  # scipy rounds its upper end beyond the largest trial
def test_the_interval_holds_the_median_and_stays_within_the_trials(values: list[float]) -> None:
    found = estimate(values)
    assert found.median == statistics.median(values)
    if found.low is not None and found.high is not None:
        assert min(values) <= found.low <= found.median <= found.high <= max(values)


@given(times)
def test_the_order_of_the_trials_does_not_matter(values: list[float]) -> None:
    one, other = estimate(values), estimate(values[::-1])
    assert (one.median, one.low, one.high) == (other.median, other.low, other.high)


def test_the_same_trials_give_the_same_interval_every_time() -> None:
    from testbed.analysis import stats

    values = [1.0, 1.2, 1.1, 1.4, 1.3, 1.25, 1.15]
    first = estimate(values)
    stats._interval.cache_clear()
    assert estimate(values) == first


def test_a_spread_above_a_tenth_of_the_median_is_unstable() -> None:
    assert estimate([9.0, 10.0, 10.2]).remark == ("unstable: trials spread over 12 % of the median")
    assert not estimate([9.6, 10.0, 10.5]).unstable


def test_intervals_that_meet_are_no_difference() -> None:
    low, high = estimate([1.0, 1.1, 1.2]), estimate([1.2, 1.3, 1.4])
    assert low.below(high) == "no difference shown"


def test_intervals_apart_are_a_difference_in_its_direction() -> None:
    low, high = estimate([1.0, 1.1, 1.2]), estimate([1.21, 1.3, 1.4])
    assert (low.below(high), high.below(low)) == ("less", "more")


def test_two_trials_are_too_few_to_compare_however_far_apart() -> None:
    assert estimate([1.0, 1.1]).below(estimate([9.0, 9.1, 9.2])) == "too few trials"


def test_ratios_are_taken_within_a_repeat_and_only_there() -> None:
    assert ratios({0: 4.0, 1: 9.0, 2: 5.0}, {1: 3.0, 0: 2.0, 7: 1.0}) == [2.0, 3.0]


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([3, 3], "n = 3 trials per point: .* 75 % of the time, not 95 %"),
        ([2, 3], "n = 2 to 3 trials per point: .* 50 % of the time where n = 2, not 95 %"),
        ([1, 1], "n = 1 trial per point: no interval can be given"),
        ([1, 9], "points with one trial have no interval"),
        ([8, 9], "^n = 8 to 9 trials per point$"),
    ],
)
def test_what_intervals_are_worth_is_said(counts: list[int], said: str) -> None:
    import re

    assert re.search(said, interval_in_words(counts))
