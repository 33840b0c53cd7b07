"""What all tests share: runs of their own, away from the user's, and what a machine may lack.

``@pytest.mark.needs("lxc-start", "/a/path", ...)`` and ``@pytest.mark.root`` skip and name what is
missing. With TESTBED_CI set nothing may be missing: whatever would be skipped fails.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from testbed.provision.ledger import ledgers
from testbed.provision.leftovers import remove


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*names): programs or paths; skipped without them")


def pytest_runtest_setup(item: pytest.Item) -> None:
    names = [name for marker in item.iter_markers("needs") for name in marker.args]
    missing = [name for name in names if shutil.which(name) is None and not is_path(name)]
    if item.get_closest_marker("root") and os.geteuid() != 0:
        missing.insert(0, "root")
    if missing:
        pytest.skip(f"needs {', '.join(dict.fromkeys(missing))}")


def is_path(name: str) -> bool:
    return Path(name).is_absolute() and Path(name).exists()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("TESTBED_CI"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: nothing may be missing in CI: {reason}"
    return report


@pytest.fixture(scope="session", autouse=True)
def state_folder() -> Iterator[Path]:
    """Where the runs of all tests are kept; at the end none may be left in it."""
    folder = Path(tempfile.mkdtemp(prefix="testbed-tests-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESTBED_STATE", str(folder))
        yield folder
        left = list(ledgers())
        for ledger in left:
            remove(ledger)
        shutil.rmtree(folder)
    assert not left, f"tests left runs behind: {left}"
