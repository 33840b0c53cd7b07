"""The rules that all tests stand under: skips name what is missing, and fail in CI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent.parent / "conftest.py"
TESTS = """\
import os
import pytest

@pytest.mark.needs("sh")
def test_there(): pass

@pytest.mark.needs("sh", "no-such-program", "/no/such/path")
def test_missing(): raise AssertionError

@pytest.mark.skipif(True, reason="needs a reason")
def test_skipped_otherwise(): raise AssertionError

@pytest.mark.xfail(reason="known")
def test_known_fault(): raise AssertionError

def test_runs_are_kept_apart(): assert "testbed-tests-" in os.environ["TESTBED_STATE"]
"""


def outcome(folder: Path, environment: dict[str, str]) -> tuple[dict[str, int], str]:
    (folder / "conftest.py").write_bytes(CONFTEST.read_bytes())
    (folder / "test_it.py").write_text(TESTS)
    kept = {name: value for name, value in os.environ.items() if name != "TESTBED_CI"}
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", str(folder)),
        cwd=folder,
        env=kept | {"PYTHONPATH": str(CONFTEST.parent.parent)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    last = done.stdout.splitlines()[-1]
    return {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", last)}, done.stdout


@pytest.mark.parametrize("ci", [False, True])
def test_what_is_missing_is_named_and_fails_in_ci(ci: bool, tmp_path: Path) -> None:
    counts, said = outcome(tmp_path, {"TESTBED_CI": "1"} if ci else {})
    counts.pop("in", None)
    if ci:
        assert (counts["passed"], counts["errors"], counts["xfailed"]) == (2, 2, 1)
        assert "nothing may be missing in CI" in said
    else:
        assert (counts["passed"], counts["skipped"], counts["xfailed"]) == (2, 2, 1)
        assert "errors" not in counts
    assert "needs no-such-program, /no/such/path" in said
    assert "needs a reason" in said
