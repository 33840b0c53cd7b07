"""How a worker talks to its orchestrator: JSON lines out, the word ``go`` in."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

NOBODY_WAITS = 3  # exit status when stdin ends: whoever started us is gone
GO = b"go"


class Channel:
    """One worker's line to its orchestrator.

    Standard output becomes the events' alone: whatever else is printed goes to standard error.
    The orchestrator keeps standard input open until it has read ``done``. Its end before that
    calls ``on_end`` from another thread, so that no worker outlives who started it.
    """

    def __init__(self, *, events: TextIO, commands_fd: int, on_end: Callable[[], None]) -> None:
        self._events = events
        self._commands_fd = commands_fd
        self._on_end = on_end
        self._go = threading.Event()
        self._finished = False
        self._last_progress = float("-inf")

    @classmethod
    def on_standard_streams(cls, on_end: Callable[[], None]) -> Channel:
        """Take over stdin and stdout; from here on fd 1 is standard error."""
        sys.stdout.flush()
        events = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        return cls(events=events, commands_fd=0, on_end=on_end)

    def listen(self) -> None:
        """Start reading commands, in a thread that does not keep the process alive."""
        threading.Thread(target=self._listen, name="commands", daemon=True).start()

    def _listen(self) -> None:
        rest = b""
        while block := os.read(self._commands_fd, 4096):
            *lines, rest = (rest + block).split(b"\n")
            if GO in (line.strip() for line in lines):
                self._go.set()
        if not self._finished:
            self._on_end()

    def emit(self, event: str, **values: object) -> None:
        """Write one event as a line of JSON and flush it."""
        self._events.write(json.dumps({"event": event, **values}) + "\n")
        self._events.flush()

    def done(self) -> None:
        """Say that the result is written; from now on the end of stdin is no fault."""
        self._finished = True
        self.emit("done")

    def progress(self, *, step: int, steps: int) -> None:
        """Report a step, at most once per second; the rest is dropped."""
        now = time.monotonic()
        if now - self._last_progress >= 1.0:
            self._last_progress = now
            self.emit("progress", step=step, steps=steps)

    def wait_for_go(self) -> None:
        """Return once the orchestrator has said ``go``. The end of stdin is ``on_end``'s affair."""
        self._go.wait()
