"""The host while a trial runs: whether there was room, and whether somebody took it away."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

INTERVAL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class HostUse:
    """Shares of all processor time, 0 to 1, while the monitor ran."""

    idle_mean: float
    idle_min: float
    steal: float


@dataclass(frozen=True, kw_only=True)
class CpuTimes:
    """Processor time of the whole host since it started, in clock ticks."""

    idle: int
    steal: int
    total: int

    @classmethod
    def read(cls, path: Path = Path("/proc/stat")) -> CpuTimes:
        """Read them; proc(5): user nice system idle iowait irq softirq steal guest guest_nice."""
        fields = [int(field) for field in path.read_text().split("\n", 1)[0].split()[1:9]]
        return cls(idle=fields[3] + fields[4], steal=fields[7], total=sum(fields))


class HostMonitor:
    """Samples the host every half second. A context manager; ``use`` is there after it."""

    def __init__(self) -> None:
        self._samples: list[CpuTimes] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> HostMonitor:
        self._samples.append(CpuTimes.read())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._samples.append(CpuTimes.read())

    def use(self) -> HostUse | None:
        """Return the shares; None if it ran for less than a clock tick."""
        return host_use(self._samples)

    def _sample(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._samples.append(CpuTimes.read())


def host_use(samples: list[CpuTimes]) -> HostUse | None:
    """Return the shares between the first and the last sample; the least idle of any pair."""
    pairs = [(before, after) for before, after in pairwise(samples) if after.total > before.total]
    if not pairs:
        return None
    first, last = samples[0], samples[-1]
    total = last.total - first.total
    return HostUse(
        idle_mean=(last.idle - first.idle) / total,
        idle_min=min((b.idle - a.idle) / (b.total - a.total) for a, b in pairs),
        steal=(last.steal - first.steal) / total,
    )
