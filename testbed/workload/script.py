"""A user's own training script as a workload: started on every node, its records collected."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .cluster_spec import ClusterSpec
from .counters import Meter
from .job import Job
from .protocol import Channel

GRACE_S = 2.0  # between SIGTERM and SIGKILL


class Running:
    """The script's process group, if it runs. Safe to kill at any time, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def start(self, argv: tuple[str, ...], *, folder: Path, environment: dict[str, str]) -> Any:
        """Start the script in a group of its own and return its process."""
        with self._lock:
            if self._killed:
                raise InterruptedError("killed before the script started")
            self._process = subprocess.Popen(
                argv,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            return self._process

    def kill(self) -> None:
        """End the whole group: SIGTERM, and after a moment SIGKILL."""
        with self._lock:
            self._killed = True
            process = self._process
        if process is None:
            return
        self._signal(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self._signal(process.pid, signal.SIGKILL)

    @staticmethod
    def _signal(group: int, number: signal.Signals) -> None:
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return


def run(
    job: Job,
    spec: ClusterSpec,
    channel: Channel,
    running: Running,
    save: Callable[[dict[str, Any]], None],
) -> int:
    """Run the script on ``go`` and return its exit status; its result is saved if that is 0.

    JSON objects that it prints, one per line, are its records; all else goes to the log. A script
    that a signal ended counts as 128 + signal, as in a shell.
    """
    path = Path(job.script).resolve()
    signal.signal(signal.SIGTERM, lambda *_: _end_with(running))
    channel.emit("ready")
    channel.wait_for_go()
    started_at = time.time()
    meter = Meter(spec.device, _children_cpu_s)
    meter.start()
    began = time.perf_counter()
    process = running.start(
        (sys.executable, str(path), *job.args),
        folder=path.parent,
        environment={**os.environ, **spec.rendezvous(), "PYTHONUNBUFFERED": "1"},
    )
    records = []
    for line in process.stdout:
        record = parse_record(line)
        if record is None:
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
            continue
        records.append({**record, "time_s": time.perf_counter() - began})
        if isinstance(record.get("step"), int):
            channel.progress(step=record["step"], steps=job.steps)
    status: int = process.wait()
    meter.stop()
    running.kill()  # what the script itself left behind
    if status:
        print(f"{path.name} ended with status {status}", file=sys.stderr, flush=True)
        return status if status > 0 else 128 - status
    channel.emit("trained", train_time_s=meter.wall_s)
    save(
        {
            "train_time_s": meter.wall_s,
            "records": records,
            "cpu_s": meter.cpu_s,
            "started_at": started_at,
            "ended_at": time.time(),
            **meter.lan,
        }
    )
    return 0


def parse_record(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object on a line, None if there is none."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _end_with(running: Running) -> None:
    running.kill()
    os._exit(128 + signal.SIGTERM)
