"""The commands on live clusters, as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from clusters import PROGRAMS, lan
from machine import State, assert_as_before, machine_state

from testbed.provision import leftovers
from testbed.provision.ledger import ledgers
from testbed.scenario import generate
from testbed.scenario.model import Switch

pytestmark = [pytest.mark.root, pytest.mark.needs(*PROGRAMS, "ssh")]


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch, state_folder: Path) -> Iterator[None]:
    folder = state_folder / f"cli-{time.monotonic_ns()}" / state_folder.name
    monkeypatch.setenv("TESTBED_STATE", str(folder))
    before = machine_state()
    yield
    left = list(ledgers())
    for ledger in left:
        leftovers.remove(ledger)
    assert_as_before(before)
    assert [ledger.tag for ledger in left] == []


def cli(*words: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        (sys.executable, "-m", "testbed", *map(str, words)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


def verified(file: Path) -> dict[str, Any]:
    """Return the verdict on a cluster's links; those of a busy machine are measured again."""
    for last in (False, False, True):
        words = (sys.executable, "-m", "testbed", "verify", str(file), "--json")
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        verdict: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if verdict["status"] == "pass" else 1)
        if verdict["status"] == "pass":
            break
        assert not last, verdict["reasons"]
    return verdict


def rows(*words: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(cli("status", "--json", *words).stdout)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return generate.write(lan(), tmp_path)


@pytest.mark.parametrize(
    ("backend", "switch"), [("lxc", "openvswitch"), ("netns", "virtual_bridge")]
)
def test_a_cluster_goes_up_is_looked_at_and_goes_down(
    backend: str, switch: Switch, tmp_path: Path
) -> None:
    file = generate.write(lan(switch=switch), tmp_path)
    up = cli("up", file, "--backend", backend)
    tag = up.stdout.strip()
    assert "2 nodes up in" in up.stderr

    listed = rows()
    assert [(row["node"], row["ssh"], row["lan"], row["rate"]) for row in listed] == [
        ("n1", "10.250.0.18", "10.10.0.1/24", "100mbit"),
        ("n2", "10.250.0.22", "10.10.0.2/24", "100mbit"),
    ]
    assert {(row["tag"], row["state"], row["backend"]) for row in listed} == {(tag, "up", backend)}
    assert tag in cli("status").stdout

    verdict = verified(file)
    assert {link["test"] for link in verdict["links"]} == {"pair", "ring"}

    assert cli("ssh", "n2", "--", "hostname").stdout == "n2\n"
    # One word is a line for the node's shell, several are a program with its arguments.
    assert cli("ssh", "n1", "--", "hostname; echo $((6 * 7))").stdout == "n1\n42\n"
    assert cli("ssh", "n1", "--", "printf", "%s|", "a b", "$HOME", "'").stdout == "a b|$HOME|'|"
    cli("ssh", "n1", "--", "exit 7", status=7)
    assert "Server listening on 10.250.0.18 port 22" in cli("logs", "n1").stdout

    cli("clean")
    assert len(rows()) == 2  # what was left standing on purpose is kept
    assert f"removed {lan().name} ({tag})" in cli("down").stdout
    assert rows() == []


def test_verify_fails_when_a_link_is_not_what_the_file_says(file: Path) -> None:
    cli("up", file)
    cli("ssh", "n1", "--", "tc", "qdisc", "del", "dev", "eth1", "root")
    done = cli("verify", status=1)
    assert "eth1 of n1 has no qdisc" in done.stdout
    assert "verdict: fail" in done.stdout
    cli("down", "--all")


def test_with_several_clusters_one_must_be_named(file: Path) -> None:
    first = cli("up", file).stdout.strip()
    second = cli("up", file, "-b", "netns").stdout.strip()
    for words in (("down",), ("verify",), ("ssh", "n1"), ("logs", "n1"), ("down", str(file))):
        said = cli(*words, status=1).stderr
        assert first in said
        assert second in said
    assert second in cli("down", second).stdout
    assert [row["tag"] for row in rows()] == [first, first]
    assert first in cli("down", str(file)).stdout


@pytest.mark.parametrize(
    "words", [("down",), ("verify",), ("ssh", "n1"), ("logs", "n1"), ("down", "no-such-lan")]
)
def test_without_a_cluster_the_command_that_starts_one_is_told(words: Sequence[str]) -> None:
    assert "testbed up" in cli(*words, status=1).stderr


def test_a_node_that_is_not_there_is_told_with_those_that_are(file: Path) -> None:
    cli("up", file)
    for verb in ("ssh", "logs"):
        assert "it has n1, n2" in cli(verb, "n9", status=1).stderr
    cli("down")


def test_a_dry_run_makes_nothing(file: Path, before: State) -> None:
    shown = cli("up", file, "--dry-run").stdout
    assert "n1  10.10.0.1/24  100mbit both ways  lxc" in shown
    assert machine_state()["runs"] == before["runs"]


def test_status_and_clean_tell_and_remove_what_was_left(file: Path) -> None:
    tag = cli("up", file).stdout.strip()
    [ledger] = ledgers()
    assert ledger.lab is not None
    os.kill(ledger.lab.pid, 9)
    assert {row["state"] for row in rows()} == {"left over: testbed clean"}
    assert tag in cli("clean").stdout
    assert "nothing was left over" in cli("clean").stdout


def test_up_refuses_a_backend_it_does_not_know(file: Path) -> None:
    said = cli("up", file, "-b", "docker", status=1).stderr
    assert "backend 'docker': expected lxc or netns" in said
