"""Workers of the testbed as processes of this machine, driven by their protocol alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import testbed
from testbed.workload.cluster_spec import ClusterSpec
from testbed.workload.job import Job

PACKAGE = Path(testbed.__file__).parent
START_TIMEOUT_S = 90.0  # TensorFlow, several times at once, on a busy machine
RUN_TIMEOUT_S = 60.0


class Worker:
    """One worker process; its events arrive in a queue, its log in a file."""

    def __init__(self, folder: Path, rank: int, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log = folder / f"log-{rank}"
        self._result = folder / f"result-{rank}.json"
        self._events: Queue[dict[str, Any] | None] = Queue()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    def wait_for(self, event: str, timeout_s: float) -> dict[str, Any]:
        """Return the next event of this name; those before it are passed over."""
        while True:
            try:
                found = self._events.get(timeout=timeout_s)
            except Empty:
                raise AssertionError(f"no {event!r} in {timeout_s} s: {self.tail()}") from None
            assert found is not None, f"ended before {event!r}: {self.tail()}"
            if found["event"] == event:
                return found

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def hang_up(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()

    def end(self, timeout_s: float = RUN_TIMEOUT_S) -> int:
        """Return the exit status."""
        return self.process.wait(timeout_s)

    def result(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self._result.read_text())
        return values

    def tail(self) -> str:
        return self.log.read_text()[-2000:]


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def workers(job: Job, count: int, folder: Path) -> Iterator[list[Worker]]:
    """Start a worker per rank, as they are started on nodes; kill what is left at the end."""
    folder.mkdir(exist_ok=True)
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(count))
    job_file = folder / "job.json"
    job_file.write_text(job.to_json())
    started: list[Worker] = []
    with ExitStack() as stack:
        for rank in range(count):
            cluster = folder / f"cluster-{rank}.json"
            cluster.write_text(ClusterSpec(workers=addresses, rank=rank, device="lo").to_json())
            log = stack.enter_context((folder / f"log-{rank}").open("w"))
            process = subprocess.Popen(
                (sys.executable, "-m", "workload", job_file, cluster, f"result-{rank}.json"),
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(PACKAGE)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            started.append(Worker(folder, rank, process))
        try:
            yield started
        finally:
            for worker in started:
                worker.process.kill()
                worker.process.wait()
                worker.reader.join()
                for stream in (worker.process.stdin, worker.process.stdout):
                    assert stream
                    stream.close()


def run(job: Job, count: int, folder: Path) -> list[dict[str, Any]]:
    """Run a job to its end and return every worker's result."""
    with workers(job, count, folder) as started:
        for worker in started:
            worker.wait_for("ready", START_TIMEOUT_S)
        for worker in started:
            worker.go()
        for worker in started:
            worker.wait_for("done", RUN_TIMEOUT_S)
        assert [worker.end() for worker in started] == [0] * count
        return [worker.result() for worker in started]
