"""What a stretch of time cost this process and the LAN: time, CPU, bytes, packets."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

# proc_net_dev(5): eight receive fields, then eight transmit fields; bytes and packets lead both
LAN_FIELDS = {"bytes_received": 0, "packets_received": 1, "bytes_sent": 8, "packets_sent": 9}


def lan_counters(device: str, *, proc: Path = Path("/proc")) -> dict[str, int]:
    """Return an interface's counters, empty if there is no such interface.

    /proc/net/dev belongs to the reader's network namespace; /sys/class/net only if somebody
    mounted a fresh sysfs.
    """
    for line in (proc / "net" / "dev").read_text().splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == device:
            values = [int(number) for number in numbers.split()]
            return {key: values[column] for key, column in LAN_FIELDS.items()}
    return {}


def peak_memory_bytes(*, proc: Path = Path("/proc")) -> int:
    """Return the largest resident size of this process so far (proc_pid_status(5), VmHWM)."""
    for line in (proc / "self" / "status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def versions() -> dict[str, str]:
    """Return the versions that a result depends on, without importing anything slow."""
    found = {"python": python_version()}
    for name, packages in (
        ("tensorflow", ("tensorflow-cpu", "tensorflow")),
        ("keras", ("keras",)),
        ("numpy", ("numpy",)),
    ):
        for package in packages:
            try:
                found.setdefault(name, version(package))
            except PackageNotFoundError:
                continue
    return found


@dataclass
class Meter:
    """A stop watch that also counts CPU time and LAN traffic, over the stretches it runs.

    ``cpu_clock`` returns the CPU seconds used so far.
    """

    device: str
    cpu_clock: Callable[[], float] = time.process_time
    wall_s: float = 0.0
    cpu_s: float = 0.0
    lan: dict[str, int] = field(default_factory=dict)
    _since: tuple[float, float, dict[str, int]] | None = None

    def start(self) -> None:
        """Begin a stretch. The clock is read last."""
        lan, cpu = lan_counters(self.device), self.cpu_clock()
        self._since = (time.perf_counter(), cpu, lan)

    def stop(self) -> None:
        """End the stretch and add it up. The clock is read first."""
        now = time.perf_counter()
        if self._since is None:
            return
        began, cpu, lan = self._since
        self.wall_s += now - began
        self.cpu_s += self.cpu_clock() - cpu
        for key, value in lan_counters(self.device).items():
            self.lan[key] = self.lan.get(key, 0) + value - lan.get(key, value)
        self._since = None
