"""What a result depends on beside its trial: this machine and the versions of everything used."""

from __future__ import annotations

import platform
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from testbed import __version__
from testbed.errors import HostError
from testbed.host.local import LocalHost

_PACKAGES = {"tensorflow": ("tensorflow-cpu", "tensorflow"), "keras": ("keras",)}
_PROGRAMS = {
    "ovs": ("ovs-vswitchd", "--version"),
    "iperf3": ("iperf3", "--version"),
    "iproute2": ("tc", "-V"),
    "lxc": ("lxc-start", "--version"),
}
_REPOSITORY = Path(__file__).resolve().parent.parent.parent


@cache
def machine_manifest() -> dict[str, Any]:
    """Return the machine and the versions; what is not there is absent."""
    found: dict[str, Any] = {
        "testbed": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "memory_bytes": psutil.virtual_memory().total,
    }
    cores = psutil.cpu_count()
    optional = {
        "host_cores": cores,
        "git_commit": _git_commit(),
        "cpu_model": _cpu_model(),
        "virtualisation": _virtualisation(),
        "distribution": _distribution(),
    }
    for name, candidates in _PACKAGES.items():
        optional[name] = next(filter(None, map(_package_version, candidates)), None)
    for name, argv in _PROGRAMS.items():
        optional[name] = _program_version(argv)
    return found | {name: value for name, value in optional.items() if value}


def _package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _program_version(argv: tuple[str, ...]) -> str | None:
    try:
        said = LocalHost().run(argv, check=False)
    except HostError:
        return None
    match = re.search(r"\d+(\.\d+)+", said.stdout + said.stderr)
    return match[0] if match else None


def _git_commit() -> str | None:
    if not (_REPOSITORY / ".git").exists():
        return None
    git = ("git", "-c", f"safe.directory={_REPOSITORY}", "-C", str(_REPOSITORY))
    try:
        commit = LocalHost().run((*git, "rev-parse", "--short=12", "HEAD"), check=False)
        changed = LocalHost().run((*git, "status", "--porcelain", "--", "testbed"), check=False)
    except HostError:
        return None
    if commit.exit_status != 0:
        return None
    return commit.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def _cpu_model() -> str | None:
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or None


def _virtualisation() -> str | None:
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if flags is None:
        return None
    return "virtual machine" if "hypervisor" in flags[1].split() else "none"


def _distribution() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None
