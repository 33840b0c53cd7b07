"""The machine we are on, or one of its namespaces: commands through subprocess."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from testbed.errors import CommandFailed, CommandTimeout, HostError
from testbed.host.base import Completed

# Writes stdin beside the target and renames it: a reader sees the old file or the new one.
_PUT = 'mkdir -p "$(dirname "$1")" && cat > "$1.part" && chmod "$2" "$1.part" && mv "$1.part" "$1"'


@dataclass(frozen=True, kw_only=True)
class LocalHost:
    """The machine we are on; ``prefix`` (such as nsenter ...) puts commands elsewhere on it."""

    name: str = "this machine"
    prefix: tuple[str, ...] = ()

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 30.0,
        stdin: str = "",
        check: bool = True,
    ) -> Completed:
        """Run a command to its end; see ``Host.run``."""
        done = self._run_bytes(argv, timeout_s=timeout_s, stdin=stdin.encode(), check=check)
        return Completed(
            exit_status=done.returncode,
            stdout=done.stdout.decode(errors="replace"),
            stderr=done.stderr.decode(errors="replace"),
        )

    def put(self, content: bytes, path: PurePosixPath, *, mode: int = 0o644) -> None:
        """Write a file whole; see ``Host.put``."""
        self._run_bytes(("sh", "-c", _PUT, "put", str(path), f"{mode:o}"), stdin=content)

    def get(self, path: PurePosixPath) -> bytes:
        """Return a file's bytes; see ``Host.get``."""
        return self._run_bytes(("cat", "--", str(path))).stdout

    def _run_bytes(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 30.0,
        stdin: bytes = b"",
        check: bool = True,
    ) -> subprocess.CompletedProcess[bytes]:
        # A session of its own: Ctrl-C reaches us alone, and a timeout can end the whole group,
        # also where the prefix has put the command into another PID namespace.
        try:
            process = subprocess.Popen(
                (*self.prefix, *argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=os.environ | {"LC_ALL": "C"},
            )
        except FileNotFoundError as error:
            raise HostError(
                f"{self.name}: no program {error.filename!r}; `testbed doctor` names its package"
            ) from error
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise CommandTimeout(
                f"{self.name}: `{' '.join(argv)}` did not end in {timeout_s:g} s"
            ) from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        if check and process.returncode != 0:
            raise CommandFailed(
                self.name, argv, process.returncode, stderr.decode(errors="replace")
            )
        return subprocess.CompletedProcess(tuple(argv), process.returncode, stdout, stderr)
