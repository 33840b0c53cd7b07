"""A worker: ``python -m workload JOB.json CLUSTER.json RESULT.json``.

Events on stdout, all else on stderr. Exit status: 0 done, 1 training failed (a peer was lost, the
data is not the published one), 2 a job that cannot be run, 3 stdin ended, else the script's own.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from . import loop, script
from .cluster_spec import ClusterSpec, node_environment
from .counters import versions
from .data.published import DataFault
from .job import FORMAT, SCRIPT, Job, JobError
from .protocol import NOBODY_WAITS, Channel

FAILED = 1
MISUSE = 2


def main(argv: list[str]) -> int:
    """Run one worker to its end and return its exit status."""
    if len(argv) != 3:
        return _say(__doc__ or "", MISUSE)
    job_file, cluster_file, result_file = map(Path, argv)
    try:
        job = Job.from_json(job_file.read_text())
        spec = ClusterSpec.from_json(cluster_file.read_text())
    except (OSError, JobError) as error:
        return _say(str(error), MISUSE)
    environment = node_environment(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    running = script.Running()
    channel = Channel.on_standard_streams(on_end=lambda: _stdin_ended(running))
    channel.listen()
    known = versions()
    channel.emit("started", versions=known)

    def save(result: dict[str, Any]) -> None:
        identity = {"format": FORMAT, "rank": spec.rank, "versions": known}
        _write(result_file, json.dumps({**identity, **result}, sort_keys=True))

    try:
        if job.workload == SCRIPT:
            status = script.run(job, spec, channel, running, save)
            if status:
                return status
        else:
            loop.train(job, spec, channel, save)
    except JobError as error:
        return _say(str(error), MISUSE)
    except DataFault as error:
        return _say(str(error), FAILED)
    except Exception:
        # Whatever a framework raises when a peer is lost: the orchestrator reads it in the log.
        return _say(traceback.format_exc(), FAILED)
    channel.done()
    return 0


def _say(message: str, status: int) -> int:
    print(message.rstrip(), file=sys.stderr, flush=True)
    return status


def _write(path: Path, content: str) -> None:
    """Write a file whole: beside the target, then renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w", encoding="utf-8") as file:
        file.write(content + "\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _stdin_ended(running: script.Running) -> None:
    running.kill()
    _leave(_say("stdin ended: nobody waits for the result any more", NOBODY_WAITS))


def _leave(status: int) -> NoReturn:
    """End at once: TensorFlow's threads may wait for a lost peer for ever."""
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _leave(main(sys.argv[1:]))
