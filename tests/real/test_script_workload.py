"""A user's script as a workload, in real processes without TensorFlow."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from workers_on_loopback import Worker, run, workers

from testbed.workload.job import Job

SOON_S = 20.0


def script(folder: Path, text: str, *args: str) -> Job:
    path = folder / "user script.py"
    path.write_text(text)
    return Job(workload="script", script=str(path), args=args)


def test_a_script_runs_in_its_folder_and_its_json_lines_become_records(tmp_path: Path) -> None:
    job = script(
        tmp_path,
        "import json, os, sys\n"
        "print('hello')\n"
        "print(json.dumps({'step': 1, 'loss': 0.5, 'args': sys.argv[1:], 'cwd': os.getcwd(),"
        " 'rank': os.environ['RANK'], 'world': os.environ['WORLD_SIZE']}))\n",
        "a b",
        "$HOME; ls",
    )
    results = run(job, 2, tmp_path / "run")
    for rank, result in enumerate(results):
        [record] = result["records"]
        assert record.pop("time_s") <= result["train_time_s"]
        assert record == {
            "step": 1,
            "loss": 0.5,
            "args": ["a b", "$HOME; ls"],
            "cwd": str(tmp_path),
            "rank": str(rank),
            "world": "2",
        }
        assert result["rank"] == rank
    assert "hello" in (tmp_path / "run" / "log-0").read_text()


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("import sys; sys.exit(7)", 7),
        ("raise ValueError('mine')", 1),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9),
    ],
)
def test_a_script_s_exit_status_is_passed_on(tmp_path: Path, text: str, status: int) -> None:
    with workers(script(tmp_path, text), 1, tmp_path / "run") as [worker]:
        worker.wait_for("ready", SOON_S)
        worker.go()
        assert worker.end(SOON_S) == status
        assert f"ended with status {status if status < 128 else -9}" in worker.tail()
        assert not (tmp_path / "run" / "result-0.json").exists()


STUBBORN = """
import json, os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open("pids", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
print(json.dumps({"step": 1}), flush=True)
time.sleep(600)
"""


def _running(worker: Worker, folder: Path) -> list[psutil.Process]:
    worker.wait_for("ready", SOON_S)
    worker.go()
    worker.wait_for("progress", SOON_S)
    found = [psutil.Process(pid) for pid in map(int, (folder / "pids").read_text().split())]
    assert all(process.is_running() for process in found)
    return found


@pytest.mark.parametrize("how", ["stdin ends", "SIGTERM"])
def test_a_script_and_its_children_end_with_whoever_started_them(tmp_path: Path, how: str) -> None:
    with workers(script(tmp_path, STUBBORN), 1, tmp_path / "run") as [worker]:
        left = _running(worker, tmp_path)
        if how == "SIGTERM":
            os.kill(worker.process.pid, signal.SIGTERM)
        else:
            worker.hang_up()
        assert worker.end(SOON_S) == (143 if how == "SIGTERM" else 3)
        gone, alive = psutil.wait_procs(left, timeout=5)
        assert len(gone) == 2
        assert not alive


def test_a_worker_that_nobody_tells_to_go_ends(tmp_path: Path) -> None:
    with workers(script(tmp_path, "print('never')"), 1, tmp_path / "run") as [worker]:
        worker.wait_for("ready", SOON_S)
        worker.hang_up()
        assert worker.end(SOON_S) == 3
        assert "stdin ended" in worker.tail()
        assert "never" not in worker.tail()
