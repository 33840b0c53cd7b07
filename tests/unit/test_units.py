from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed import units
from testbed.errors import UnitError

MIB = 1024**2


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_rate, "10mbit", 10_000_000),
        (units.parse_rate, "2.5mbit", 2_500_000),
        (units.parse_rate, "1gbit", 10**9),
        (units.parse_rate, "unlimited", None),
        (units.parse_delay, "20ms", 20_000),
        (units.parse_delay, "1.5ms", 1_500),
        (units.parse_delay, "0ms", 0),
        (units.parse_delay, "1s", 10**6),
        (units.parse_loss, "1%", 0.01),
        (units.parse_loss, "0.1%", 0.001),
        (units.parse_loss, "0%", 0.0),
        (units.parse_cpu, "0.4", 0.4),
        (units.parse_cpu, "40%", 0.4),
        (units.parse_cpu, "1", 1.0),
        (units.parse_cpu, "150%", 1.5),
        (units.parse_memory, "2G", 2 * 1024**3),
        (units.parse_memory, "512M", 512 * MIB),
        (units.parse_memory, "1.5G", 1536 * MIB),
        (units.parse_burst, "16kb", 16_384),
        (units.parse_burst, "1500b", 1_500),
    ],
)
def test_a_quantity_reads_as_its_base_unit(
    parse: Callable[[str], object], text: str, value: object
) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (units.format_rate(10_000_000), "10mbit"),
        (units.format_rate(2_500_000), "2500kbit"),
        (units.format_rate(12_345), "12345bit"),
        (units.format_rate(None), "unlimited"),
        (units.format_delay(20_000), "20ms"),
        (units.format_delay(0), "0ms"),
        (units.format_delay(1), "1us"),
        (units.format_loss(0.01), "1%"),
        (units.format_loss(0.0), "0%"),
        (units.format_loss(-0.0), "0%"),
        (units.format_loss(1e-9), "0.0000001%"),
        (units.format_cpu(0.4), "40%"),
        (units.format_cpu(2), "200%"),
        (units.format_memory(2 * 1024**3), "2G"),
        (units.format_memory(1536 * MIB), "1536M"),
        (units.format_burst(16_384), "16kb"),
        (units.format_burst(1_500), "1500b"),
    ],
)
def test_a_quantity_is_printed_in_its_largest_whole_unit(written: str, text: str) -> None:
    assert written == text


@pytest.mark.parametrize(
    "text",
    [
        "10mbps",
        "10",
        "-5mbit",
        "+5mbit",
        "0",
        "0mbit",
        "10gbitt",
        "1; cmd",
        "$(shell id)",
        "10Mbit",
        "10 mbit",
        "10mbit\n",
        "1e3mbit",
        "٣mbit",
        "tenmeg",
        "",
        "Unlimited",
        "0.5bit",
        "2000gbit",
        "9" * 5000 + "mbit",
        "nan",
        "infmbit",
    ],
)
def test_a_rate_that_could_be_misread_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match=r"(?s)^bandwidth .*: expected .*; write "):
        units.parse_rate(text)


def test_the_message_says_what_was_given_what_is_expected_and_what_to_write() -> None:
    with pytest.raises(UnitError) as caught:
        units.parse_rate("10mbps")
    assert str(caught.value) == (
        "bandwidth '10mbps': expected a positive number and one of bit, kbit, mbit, gbit, "
        "or 'unlimited'; write 10mbit (tc reads mbps as bytes per second)"
    )


def test_a_wrong_capital_is_named() -> None:
    with pytest.raises(UnitError, match=r"write 10mbit \(capitals count\)"):
        units.parse_rate("10Mbit")


def test_a_long_text_is_not_repeated_whole() -> None:
    with pytest.raises(UnitError) as caught:
        units.parse_rate("9" * 5000 + "mbit")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_delay, "20"),
        (units.parse_delay, "-1ms"),
        (units.parse_delay, "0.5us"),
        (units.parse_delay, "61s"),
        (units.parse_delay, "20msec"),
        (units.parse_loss, "0.01"),
        (units.parse_loss, "1"),
        (units.parse_loss, "100%"),
        (units.parse_loss, "-1%"),
        (units.parse_cpu, "0"),
        (units.parse_cpu, "0%"),
        (units.parse_cpu, "-0.4"),
        (units.parse_cpu, "nan"),
        (units.parse_cpu, "2000"),
        (units.parse_cpu, "half"),
        (units.parse_memory, "2"),
        (units.parse_memory, "2g"),
        (units.parse_memory, "2GB"),
        (units.parse_memory, "0M"),
        (units.parse_memory, "0.5M"),
        (units.parse_memory, "9" * 30 + "G"),
        (units.parse_burst, "16"),
        (units.parse_burst, "16kbit"),
        (units.parse_burst, "0kb"),
        (units.parse_burst, "16KB"),
    ],
)
def test_every_other_unit_refuses_what_could_be_misread(
    parse: Callable[[str], object], text: str
) -> None:
    with pytest.raises(UnitError, match="expected"):
        parse(text)


@given(st.integers(1, units.MAX_RATE_BPS))
def test_rates_survive_printing(rate_bps: int) -> None:
    assert units.parse_rate(units.format_rate(rate_bps)) == rate_bps


@given(st.integers(0, units.MAX_DELAY_US))
def test_delays_survive_printing(delay_us: int) -> None:
    assert units.parse_delay(units.format_delay(delay_us)) == delay_us


@given(st.floats(0, 1, exclude_max=True))
def test_losses_survive_printing(loss: float) -> None:
    assert units.parse_loss(units.format_loss(loss)) == loss


@given(st.floats(0, units.MAX_CPU_CORES, exclude_min=True))
def test_cpu_shares_survive_printing(cores: float) -> None:
    assert units.parse_cpu(units.format_cpu(cores)) == cores


@given(st.integers(1, units.MAX_MEMORY_BYTES // MIB))
def test_memories_survive_printing(mebibytes: int) -> None:
    memory_bytes = mebibytes * MIB
    assert units.parse_memory(units.format_memory(memory_bytes)) == memory_bytes


@given(st.integers(1, units.MAX_BURST_BYTES))
def test_bursts_survive_printing(burst_bytes: int) -> None:
    assert units.parse_burst(units.format_burst(burst_bytes)) == burst_bytes


@given(st.text(max_size=30))
def test_any_text_is_a_value_or_a_unit_error(text: str) -> None:
    for parse in (
        units.parse_rate,
        units.parse_delay,
        units.parse_loss,
        units.parse_cpu,
        units.parse_memory,
        units.parse_burst,
    ):
        with contextlib.suppress(UnitError):
            parse(text)
