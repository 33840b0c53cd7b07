"""Quantities as people write them, and back. No other module reads or prints units.

Every ``parse_x(format_x(value)) == value`` exactly. A bare number is refused wherever its unit
could be mistaken: tc reads ``10mbps`` as megabytes per second and ``10`` as bits.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from testbed.errors import UnitError

UNLIMITED = "unlimited"

MAX_RATE_BPS = 10**12
MAX_DELAY_US = 60 * 10**6
MAX_MEMORY_BYTES = 2**50
MAX_CPU_CORES = 1024
MAX_BURST_BYTES = 2**30

MIB = 1024**2

_RATE = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_DELAY = {"us": 1, "ms": 10**3, "s": 10**6}
_MEMORY = {"M": MIB, "G": 1024**3}
_BURST = {"b": 1, "kb": 1024, "mb": MIB}  # tc(8): sizes count in 1024

# \d would also match the digits of other scripts, which tc does not read.
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z%]*)")
_MAX_LENGTH = 1100  # the longest double written out in full


def parse_rate(text: str) -> int | None:
    """Return bits per second, or None for ``unlimited`` (no queue at all)."""
    if text == UNLIMITED:
        return None
    expected = "a positive number and one of bit, kbit, mbit, gbit, or 'unlimited'"
    rate_bps = _whole(text, _RATE, "bandwidth", expected, "for example 10mbit")
    if not 0 < rate_bps <= MAX_RATE_BPS:
        raise _refused("bandwidth", text, "more than 0 and at most 1000gbit", "for example 10mbit")
    return rate_bps


def format_rate(rate_bps: int | None) -> str:
    """Return a rate as tc and VNX read it, such as ``10mbit``."""
    return UNLIMITED if rate_bps is None else _in_largest(rate_bps, _RATE)


def parse_delay(text: str) -> int:
    """Return microseconds."""
    expected = "a number and one of us, ms, s"
    delay_us = _whole(text, _DELAY, "delay", expected, "for example 20ms")
    if delay_us > MAX_DELAY_US:
        raise _refused("delay", text, "at most 60s", "for example 20ms")
    return delay_us


def format_delay(delay_us: int) -> str:
    """Return a delay as tc reads it, such as ``20ms``."""
    return _in_largest(delay_us, _DELAY) if delay_us else "0ms"


def parse_loss(text: str) -> float:
    """Return the probability that a packet is lost, from 0 up to but without 1."""
    number, _ = _split(text, ("%",), "loss", "a percentage", "for example 1%")
    loss = float(number.scaleb(-2))
    if loss >= 1:
        raise _refused("loss", text, "less than 100%", "for example 1%")
    return loss


def format_loss(loss: float) -> str:
    """Return a probability as a percentage, such as ``1%``."""
    return _percent(loss)


def parse_cpu(text: str) -> float:
    """Return cores: ``0.4`` and ``40%`` are both four tenths of one."""
    expected = "a number of cores or a percentage of one core"
    number, unit = _split(text, ("", "%"), "CPU share", expected, "for example 0.4 or 40%")
    cores = float(number.scaleb(-2) if unit else number)
    if not 0 < cores <= MAX_CPU_CORES:
        raise _refused(
            "CPU share", text, f"more than 0, at most {MAX_CPU_CORES}", "for example 0.4"
        )
    return cores


def format_cpu(cores: float) -> str:
    """Return a CPU share as VNX's vcpu_quota wants it, such as ``40%``."""
    return _percent(cores)


def parse_memory(text: str) -> int:
    """Return bytes, a whole number of MiB; M and G count in 1024, as VNX and LXC read them."""
    expected = "a number and M or G"
    memory_bytes = _whole(text, _MEMORY, "memory", expected, "for example 512M or 2G")
    if memory_bytes % MIB or not 0 < memory_bytes <= MAX_MEMORY_BYTES:
        raise _refused("memory", text, "at least 1M, in whole M", "for example 512M or 2G")
    return memory_bytes


def format_memory(memory_bytes: int) -> str:
    """Return a whole number of MiB, such as ``512M`` or ``2G``."""
    if memory_bytes % MIB:
        raise UnitError(f"memory of {memory_bytes} bytes: expected a whole number of MiB")
    return _in_largest(memory_bytes, _MEMORY)


def parse_burst(text: str) -> int:
    """Return a bucket's bytes; kb is 1024 of them, as tc(8) counts sizes."""
    expected = "a number and one of b, kb, mb"
    burst_bytes = _whole(text, _BURST, "burst", expected, "for example 16kb")
    if not 0 < burst_bytes <= MAX_BURST_BYTES:
        raise _refused("burst", text, "more than 0 and at most 1024mb", "for example 16kb")
    return burst_bytes


def format_burst(burst_bytes: int) -> str:
    """Return a size as tc reads it, such as ``16kb``."""
    return _in_largest(burst_bytes, _BURST)


def _refused(what: str, text: str, expected: str, write: str) -> UnitError:
    given = text if len(text) <= 40 else f"{text[:40]}..."
    return UnitError(f"{what} {given!r}: expected {expected}; write {write}")


def _split(
    text: str, units: tuple[str, ...], what: str, expected: str, write: str
) -> tuple[Decimal, str]:
    """Return number and unit of ``12.5kbit``; only the units given are accepted."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise _refused(what, text, expected, write)
    number, unit = match.groups()
    if unit in units:
        return Decimal(number), unit
    if unit.lower() in ("bps", "kbps", "mbps", "gbps"):
        bits = f"{number}{unit[:-2].lower()}it"
        raise _refused(what, text, expected, f"{bits} (tc reads {unit} as bytes per second)")
    if not unit:
        raise _refused(what, text, expected, f"{write} (a bare number has no unit)")
    near = [known for known in units if known.lower() == unit.lower()]
    if near:
        raise _refused(what, text, expected, f"{number}{near[0]} (capitals count)")
    raise _refused(what, text, expected, write)


def _whole(text: str, units: dict[str, int], what: str, expected: str, write: str) -> int:
    """Return a quantity in its base unit; fractions such as 2.5mbit must come out whole."""
    number, unit = _split(text, tuple(units), what, expected, write)
    # Digits of the numerator are bounded by _MAX_LENGTH, so exact integers stay cheap.
    numerator, denominator = number.as_integer_ratio()
    base, rest = divmod(numerator * units[unit], denominator)
    if rest:
        smallest = next(iter(units))
        raise _refused(what, text, f"a whole number of {smallest}", write)
    return base


def _in_largest(value: int, units: dict[str, int]) -> str:
    """Return a positive value in the largest unit that divides it."""
    if value <= 0:
        raise UnitError(f"{value} {next(iter(units))}: expected a positive number")
    name, size = next(pair for pair in reversed(units.items()) if value % pair[1] == 0)
    return f"{value // size}{name}"


def _percent(share: float) -> str:
    """Return a share as a percentage with all the digits that make it that double."""
    if not (math.isfinite(share) and share >= 0):
        raise UnitError(f"share {share}: expected 0 or more")
    digits = format(Decimal(repr(float(share) + 0.0)).scaleb(2), "f")
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits}%"
