"""The workers of one trial: started together, listened to together, ended together."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from testbed.errors import CommandTimeout, Unreachable, WorkerFailed
from testbed.host.group import in_parallel
from testbed.host.ssh import RemoteProcess, SshHost

LOG_LINES = 12  # of a failed worker's log, in the message


@dataclass(frozen=True, kw_only=True)
class Event:
    """What one worker said; ``name`` None: its output ended."""

    node: str
    name: str | None
    values: Mapping[str, Any]


class Workers:
    """One program on every node. Use as a context manager: leaving it ends them all.

    ``logs`` gets NODE.log for each: standard error, and what is no event.
    """

    def __init__(
        self,
        hosts: Sequence[SshHost],
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: PurePosixPath,
        logs: Path,
    ) -> None:
        self._names = tuple(host.name for host in hosts)
        self._logs = logs
        self._files: dict[str, BinaryIO] = {}
        self._processes: dict[str, RemoteProcess] = {}
        self._events: queue.Queue[Event] = queue.Queue()
        self._threads: list[threading.Thread] = []
        self._said: dict[str, dict[str, Mapping[str, Any]]] = {}
        try:
            for host in hosts:
                self._files[host.name] = (logs / f"{host.name}.log").open("wb", buffering=0)

            def start(host: SshHost) -> None:
                self._processes[host.name] = host.start(
                    argv,
                    environment=environment,
                    folder=folder,
                    on_log=lambda said: self._log(host.name, said),
                )

            in_parallel(start, hosts)
        except BaseException:
            self.close()
            raise
        for name in self._names:
            thread = threading.Thread(target=self._listen, args=(name,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_for(
        self,
        event: str,
        *,
        stall_s: float,
        on_event: Callable[[Event], None] | None = None,
    ) -> dict[str, Mapping[str, Any]]:
        """Return what every worker said with this event, once all have; by node.

        Raises:
            WorkerFailed: a worker ended before, or nobody said anything for ``stall_s``.
        """
        said = self._said.setdefault(event, {})
        deadline = time.monotonic() + stall_s
        while len(said) < len(self._names):
            try:
                found = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                silent = next(name for name in self._names if name not in said)
                raise WorkerFailed(
                    silent,
                    f"no {event!r} and no sign of life for {stall_s:g} s{self._tail(silent)}",
                ) from None
            deadline = time.monotonic() + stall_s
            if found.name is None:
                self._refuse_end(found.node, event)
            else:
                self._said.setdefault(found.name, {})[found.node] = found.values
            if on_event is not None:
                on_event(found)
        return dict(said)

    def say(self, word: str) -> None:
        """Send one line to every worker."""
        for name in self._names:
            self._processes[name].write_line(word)

    def wait_for_end(self, *, timeout_s: float) -> None:
        """Return when all have ended well.

        Raises:
            WorkerFailed: one ended with another status than 0, or not in time.
        """
        for name in self._names:
            try:
                status = self._processes[name].exit_status(timeout_s)
            except CommandTimeout as error:
                raise WorkerFailed(
                    name, f"its worker did not end in {timeout_s:g} s{self._tail(name)}"
                ) from error
            if status != 0:
                raise WorkerFailed(name, f"ended with status {status}{self._tail(name)}")

    def close(self) -> None:
        """End all that still run, and the threads that listened; may be called twice."""
        for process in self._processes.values():
            process.close()
        for thread in self._threads:
            thread.join(timeout=5.0)
        for file in self._files.values():
            file.close()

    def _refuse_end(self, node: str, event: str) -> None:
        if "done" in self._said and node in self._said["done"]:
            return
        try:
            status = self._processes[node].exit_status(5.0)
        except CommandTimeout:
            status = -1
        how = "was killed or cut off" if status < 0 else f"ended with status {status}"
        raise WorkerFailed(node, f"its worker {how} before {event!r}{self._tail(node)}")

    def _log(self, node: str, said: bytes) -> None:
        self._files[node].write(said)

    def _tail(self, node: str) -> str:
        text = (self._logs / f"{node}.log").read_text(errors="replace")
        lines = text.splitlines()[-LOG_LINES:]
        return "; its log ends:\n    " + "\n    ".join(lines) if lines else "; its log is empty"

    def _listen(self, name: str) -> None:
        try:
            for line in self._processes[name].lines():
                event = _parse(line)
                if event is None:
                    self._log(name, f"{line}\n".encode())
                else:
                    self._events.put(Event(node=name, name=event.pop("event"), values=event))
        except (OSError, Unreachable) as error:
            self._log(name, f"the connection broke: {error}\n".encode())
        finally:
            self._events.put(Event(node=name, name=None, values={}))


def _parse(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("event"), str) else None
