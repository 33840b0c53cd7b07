"""What every machine can do for us: run a command, take a file, give one back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A command that ended: its status and what it wrote (UTF-8, the undecodable replaced)."""

    exit_status: int
    stdout: str
    stderr: str


class Host(Protocol):
    """A machine: this one, one of its namespaces, or a node over SSH.

    argv is always a sequence of words; quoting, where a transport needs it, happens inside.
    """

    @property
    def name(self) -> str:
        """How messages call this machine, such as ``n1``."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 30.0,
        stdin: str = "",
        check: bool = True,
    ) -> Completed:
        """Run a command to its end and return what it wrote.

        Raises:
            CommandFailed: it ended with a non-zero status (only with ``check``).
            CommandTimeout: it did not end in ``timeout_s``; it was killed.
            Unreachable: the machine does not answer.
        """
        ...

    def put(self, content: bytes, path: PurePosixPath, *, mode: int = 0o644) -> None:
        """Write a file whole (beside, then renamed), making its parent folders."""
        ...

    def get(self, path: PurePosixPath) -> bytes:
        """Return a file's bytes.

        Raises:
            CommandFailed: there is no such file.
        """
        ...
