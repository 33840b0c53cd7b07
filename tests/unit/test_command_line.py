"""Bad input as users type it: one clear message, exit status 1 or 2, and nothing created."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from sweeps import sweep_of

import testbed
from testbed import cli
from testbed.errors import MissingCapability
from testbed.experiment import payload, preflight, runner, store
from testbed.scenario import generate, vnx
from testbed.scenario.model import Shape

REPOSITORY = Path(testbed.__file__).parent.parent
FAULTS = REPOSITORY / "tests/unit/faults"
YAML_FAULTS = REPOSITORY / "tests/unit/faults_yaml"
TINY = "format: 1\nname: tiny\ncpu: 0.4\nmatrix:\n  nodes: [1, 2]\n  bandwidth: [10mbit]\n"


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it wrote."""

    status: int
    out: str
    err: str


Typed = Callable[..., Said]


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Typed]:
    """Types a command in an empty folder, as `testbed WORDS`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name in [name for name in os.environ if name.startswith("TESTBED_")]:
        if name not in ("TESTBED_STATE", "TESTBED_CI"):
            monkeypatch.delenv(name)
    handler = signal.getsignal(signal.SIGTERM)

    def typing(*words: object) -> Said:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["testbed", *map(str, words)])
        try:
            cli.main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        else:
            status = 0
        return Said(status, *capsys.readouterr())

    yield typing
    signal.signal(signal.SIGTERM, handler)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return every path below a folder, with the bytes of files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def refused(typed: Typed, tmp_path: Path, state_folder: Path) -> Callable[..., str]:
    """Types a command that must be refused; returns its message."""

    def refusing(*words: object, status: int = 1) -> str:
        before = contents(tmp_path), contents(state_folder)
        said = typed(*words)
        assert said.status == status, said
        assert said.out == ""
        assert said.err.strip()
        assert "Traceback" not in said.err
        assert (contents(tmp_path), contents(state_folder)) == before
        return said.err

    return refusing


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that could run anything, but must not be asked to."""

    def run_trial(*_: object, **__: object) -> Any:
        raise AssertionError("a trial was started")

    monkeypatch.setattr(preflight, "check_cluster", lambda *_: None)
    monkeypatch.setattr(preflight, "host_cores", lambda: 2)
    monkeypatch.setattr(runner, "run_trial", run_trial)
    payload._data.cache_clear()


@pytest.mark.parametrize("verb", ["scenario", "run"])
@pytest.mark.parametrize(
    ("bandwidth", "hint"),
    [
        ("10mbps", "10mbit"),
        ("10", "10mbit"),
        ("-5mbit", "expected"),
        ("0", "expected"),
        ("0mbit", "expected"),
        ("10gbitt", "expected"),
        ("1; cmd", "expected"),
        ("$(shell id)", "expected"),
        ("10 mbit 5", "expected"),
    ],
)
def test_a_bandwidth_that_cannot_be_read_is_refused(
    verb: str, bandwidth: str, hint: str, refused: Callable[..., str], able: None
) -> None:
    message = refused(verb, f"--bw={bandwidth}")
    assert f"'{bandwidth}'" in message
    assert hint in message


@pytest.mark.parametrize("verb", ["scenario", "run"])
@pytest.mark.parametrize(
    ("option", "status", "part"),
    [
        ("--nodes=0", 1, "nodes 0: expected 1 to 250"),
        ("--nodes=251", 1, "nodes 251: expected 1 to 250"),
        ("--nodes=abc", 2, "expected a whole number"),
        ("--nodes=2.5", 2, "expected a whole number"),
        ("--loss=1", 1, "'1'"),
        ("--delay=20", 1, "'20'"),
        ("--mem=2", 1, "'2'"),
        ("--cpu=many", 1, "'many'"),
        ("--switch=hub", 1, "expected openvswitch or virtual_bridge"),
        ("--no-such-option", 2, "--no-such-option"),
    ],
)
def test_every_other_value_is_checked_too(
    verb: str, option: str, status: int, part: str, refused: Callable[..., str], able: None
) -> None:
    assert part in refused(verb, option, status=status)


def test_all_that_is_wrong_is_said_at_once(refused: Callable[..., str], able: None) -> None:
    message = refused("run", "--nodes=0", "--bw=10mbps", "--delay=5", "--cpu=x", "--switch=hub")
    for part in ("nodes 0", "10mbps", "'5'", "'x'", "hub"):
        assert part in message
    message = refused("run", "--mode=fast", "--backend=docker", "--model=gpt", "--workload=c4")
    for part in ("fast", "docker", "gpt", "c4"):
        assert part in message


def test_a_scenario_is_written_with_its_path_alone_on_stdout(typed: Typed, tmp_path: Path) -> None:
    said = typed("scenario", "--nodes=4", "--bw=10mbit")
    assert (said.status, said.out, said.err) == (0, "scenarios/lan-4n-10mbit.xml\n", "")
    written = (tmp_path / said.out.strip()).read_bytes()
    assert vnx.parse(written, source="x") == generate.star(4, Shape(rate_bps=10_000_000))
    shown = typed("scenario", "--nodes=4", "--bw=10mbit", "--dry-run")
    assert shown.out.encode() == written
    assert typed("lint", said.out.strip()).status == 0


def test_a_file_edited_by_hand_is_kept_unless_forced(
    typed: Typed, refused: Callable[..., str], tmp_path: Path
) -> None:
    typed("scenario", "--nodes=2", "--bw=10mbit")
    file = tmp_path / "scenarios/lan-2n-10mbit.xml"
    file.write_bytes(file.read_bytes().replace(b"2G", b"3G"))
    assert "FORCE=1" in refused("scenario", "--nodes=2", "--bw=10mbit")
    assert typed("scenario", "--nodes=2", "--bw=10mbit", "--force").status == 0
    assert b"3G" not in file.read_bytes()


@pytest.mark.parametrize(
    "fault",
    [
        *("not-xml", "dtd", "external-entity", "billion-laughs", "same-address-twice"),
        *("net-that-does-not-exist", "unknown-element", "vm-name-of-13-characters"),
        *("net-name-of-13-characters", "251-vms", "bw-a-command", "bw-bytes-per-second"),
    ],
)
def test_a_file_that_cannot_be_a_cluster_is_refused_by_every_command(
    fault: str, refused: Callable[..., str], typed: Typed, able: None
) -> None:
    file = FAULTS / f"{fault}.xml"
    linted = typed("lint", file)
    assert linted.status == 1
    assert f"{file}:" in linted.out
    for words in (("up", file), ("run", "--scenario", file)):
        message = refused(*words)
        assert f"{file}:" in message
        assert "error" in message


def test_a_huge_file_is_not_read(refused: Callable[..., str], tmp_path: Path, able: None) -> None:
    huge = tmp_path.parent / "huge.xml"
    with huge.open("wb") as file:
        file.truncate(100_000_000)  # sparse
    began = time.perf_counter()
    for words in (("lint", huge), ("up", huge), ("run", "--scenario", huge)):
        assert "larger than 4 MB" in refused(*words)
    began_yaml = time.perf_counter()
    assert str(huge) in refused("sweep", huge)
    assert time.perf_counter() - began_yaml < 30
    assert began_yaml - began < 30


@pytest.mark.parametrize("words", [("lint", "no.xml"), ("up", "no.xml"), ("sweep", "no.yaml")])
def test_a_file_that_is_not_there_is_told(
    words: tuple[str, str], refused: Callable[..., str], able: None
) -> None:
    assert words[1] in refused(*words)


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        ("duplicate_key", "twice"),
        ("unknown_key", "unknown"),
        ("empty_matrix", "matrix"),
        ("wrong_unit", "expected"),
        ("command_as_bandwidth", "expected"),
        ("budgets_beyond_the_cores", "80 %"),
        ("nodes_do_not_divide_the_batch", "global_batch_size"),
    ],
)
@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)], ids=["run", "dry"])
def test_a_sweep_file_with_a_fault_starts_nothing(
    fault: str, part: str, dry_run: tuple[str, ...], refused: Callable[..., str], able: None
) -> None:
    file = YAML_FAULTS / f"{fault}.yaml"
    message = refused("sweep", file, *dry_run)
    assert f"{file}:" in message
    assert part in message


def test_budgets_beyond_the_cores_are_refused(refused: Callable[..., str], able: None) -> None:
    message = refused("run", "--nodes=4", "--cpu=0.5")
    assert "80 %" in message
    assert "at most 0.4" in message


def test_too_little_memory_is_refused_before_anything_starts(
    refused: Callable[..., str], typed: Typed, able: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "MEM=1G" in refused("run", "--nodes=1", "--mem=512M")
    total = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: total._replace(available=10**9))
    needed = "4 nodes need about 2.8 GB"
    assert needed in refused("run", "--nodes=4")
    dry = typed("run", "--nodes=4", "--dry-run")  # says what hinders it, and the rest as well
    assert (dry.status, needed in dry.err) == (0, True)


def test_no_root_is_told_with_the_command_that_mends_it(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    file = generate.write(generate.star(2, Shape(rate_bps=10_000_000)), tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    for words in (("up", file), ("run",), ("sweep", "tiny.yaml"), ("down",), ("clean",)):
        message = refused(*words)
        assert "root" in message
        assert "sudo" in message


def test_a_missing_program_is_told_with_its_package(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(preflight.shutil, "which", lambda name: None)
    file = generate.write(generate.star(2, Shape(rate_bps=10_000_000)), tmp_path)
    message = refused("up", file)
    assert "lxc-start" in message
    assert "apt-get install" in message
    for package in ("lxc", "openvswitch-switch", "iperf3", "openssh-server", "iproute2"):
        assert f" {package}" in message


def test_delay_is_refused_where_the_kernel_cannot(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_netem(host: object) -> None:
        raise MissingCapability("the kernel has no netem (module sch_netem)", mend="a kernel")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(preflight.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(preflight, "require_netem", no_netem)
    shape = Shape(rate_bps=10_000_000, delay_us=20_000)
    file = generate.write(generate.star(2, shape), tmp_path)
    for words in (("up", file), ("run", "--delay=20ms"), ("run", "--loss=1%")):
        assert "sch_netem" in refused(*words)


def test_a_data_set_with_a_wrong_byte_is_refused(
    refused: Callable[..., str], able: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = tmp_path / "cache" / "testbed" / "mnist"
    cache.mkdir(parents=True)
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (cache / name).write_bytes(b"not these bytes")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for words in (("run", "--workload=mnist", "--nodes=1"), ("data", "fetch", "mnist")):
        message = refused(*words)
        assert "mnist" in message
        assert "testbed data fetch mnist" in message


def test_a_folder_of_another_matrix_is_refused_with_both_values(
    refused: Callable[..., str], able: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(preflight, "check", lambda *_: None)
    (tmp_path / "tiny.yaml").write_text(TINY.replace("cpu: 0.4", "cpu: 0.4\nsteps: 7"))
    sweep = sweep_of("cpu: 0.4\nsteps: 5\n", nodes="1, 2", bandwidth="10mbit")
    with store.open_sweep(tmp_path / "results/tiny", sweep, host_cores=2):
        pass
    message = refused("sweep", "tiny.yaml")
    assert "results/tiny" in message
    assert "steps" in message


def test_two_commands_on_one_sweep_at_once_are_refused(
    refused: Callable[..., str], able: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(preflight, "check", lambda *_: None)
    (tmp_path / "tiny.yaml").write_text(TINY)
    folder = tmp_path / "results/tiny"
    folder.mkdir(parents=True)
    with store.locked(folder):
        assert str(os.getpid()) in refused("sweep", "tiny.yaml")
    runs = tmp_path / "results/runs"
    runs.mkdir()
    with store.locked(runs):
        assert str(os.getpid()) in refused("run")


def test_a_script_that_is_not_there_or_not_in_its_folder_is_refused(
    refused: Callable[..., str], able: None, tmp_path: Path
) -> None:
    assert "no such file" in refused("run", "--script", "no.py")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "other").mkdir()
    assert "expected a file in other" in refused("run", "--script", "train.py", "--dir", "other")


def test_a_dry_run_lists_the_trials_with_their_time_and_creates_nothing(
    typed: Typed, able: None, tmp_path: Path
) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    before = contents(tmp_path)
    said = typed("sweep", "tiny.yaml", "--dry-run", "--json")
    assert [row["nodes"] for row in json.loads(said.out)].count(2) == 3
    assert "6 trials, 6 missing: about" in said.err
    assert contents(tmp_path) == before


def test_plots_of_a_folder_that_is_not_there_are_misuse(refused: Callable[..., str]) -> None:
    for verb in ("plots", "report", "export"):
        assert "results/none" in refused(verb, "results/none", status=2)


@pytest.mark.parametrize(
    "verb",
    [
        *("scenario", "lint", "up", "status", "verify", "ssh", "logs", "down", "clean", "doctor"),
        *("run", "sweep", "plots", "report", "export", "data"),
    ],
)
def test_every_command_has_help(verb: str, typed: Typed) -> None:
    said = typed(verb, "--help")
    assert said.status == 0
    assert "Usage" in said.out
    if verb != "data":
        example = " ".join(said.out.split()).partition("Example: ")[2]
        assert f"testbed {verb}" in example


def python(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, *words),
        capture_output=True,
        text=True,
        timeout=60,
        cwd=REPOSITORY,
        **more,
    )


def test_help_imports_nothing_that_takes_long() -> None:
    code = (
        "import sys\nfrom testbed import cli\nsys.argv = ['testbed', '--help']\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = ('tensorflow', 'matplotlib', 'pandas', 'paramiko', 'scipy', 'pydantic', 'numpy')\n"
        "print('HEAVY', [name for name in heavy if name in sys.modules])\n"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "HEAVY []" in done.stdout


def test_help_takes_a_few_times_as_long_as_python_itself() -> None:
    def fastest(*words: str) -> float:
        times = []
        for _ in range(3):
            began = time.perf_counter()
            assert python(*words).returncode == 0
            times.append(time.perf_counter() - began)
        return min(times)

    # A bare import of the command line's own library is the yardstick: load does not matter.
    yardstick = fastest("-c", "import typer, rich.console")
    assert fastest("-m", "testbed", "--help") < 4 * yardstick + 0.1
    assert fastest("-m", "testbed", "scenario", "--dry-run") < 8 * yardstick + 0.2


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs make in a copy of the project's face, where the program is this very one."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_bytes((REPOSITORY / name).read_bytes())
    (tmp_path / "dev").mkdir()
    for name in ("setup", "give-back"):
        (tmp_path / "dev" / name).write_bytes((REPOSITORY / "dev" / name).read_bytes())
        (tmp_path / "dev" / name).chmod(0o755)
    program = tmp_path / ".venv/bin/testbed"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m testbed "$@"\n')
    program.chmod(0o755)
    (tmp_path / ".venv/.ready").touch()

    def making(
        *words: str, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MAKE", "MFLAGS"))
        }
        return subprocess.run(
            ("make", *words),
            cwd=tmp_path,
            env=inherited | {"PYTHONPATH": str(REPOSITORY)} | (environment or {}),
            capture_output=True,
            text=True,
            timeout=60,
        )

    return making


HOSTILE = (
    "1; touch pwned",
    "$(shell touch pwned)",
    "$(touch pwned)",
    "`touch pwned`",
    "' ; touch pwned; '",
    '"; touch pwned; "',
    "$$(touch pwned)",
    "1\n\ttouch pwned",
    "| touch pwned #",
    "$(eval X:=$(shell touch pwned))",
)


@pytest.mark.needs("make")
@pytest.mark.parametrize("value", HOSTILE)
def test_values_on_makes_command_line_are_data(
    value: str, make: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    before = contents(tmp_path)
    for done in (
        make("scenario", f"BW={value}"),
        make("scenario", environment={"BW": value}),
    ):
        assert done.returncode != 0
        assert "error:" in done.stderr
        assert "pwned" in done.stderr  # it is told back as it was typed
    assert contents(tmp_path) == before


@pytest.mark.needs("make")
def test_make_scenario_hands_every_value_over(
    make: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = make(
        *("scenario", "NODES=3", "BW=20mbit", "CPU=0.2", "MEM=1G", "DELAY=5ms", "LOSS=1%"),
        *("SWITCH=virtual_bridge", "NAME=mine"),
    )
    assert done.stdout == "scenarios/mine.xml\n", done.stderr
    made = vnx.read(tmp_path / "scenarios/mine.xml")
    assert made == generate.star(
        3,
        Shape(rate_bps=20_000_000, delay_us=5_000, loss=0.01),
        memory_bytes=2**30,
        cpu_cores=0.2,
        switch="virtual_bridge",
        name="mine",
    )
    assert make("help").stdout.count("\n  make ") >= 12


@pytest.mark.needs("make")
def test_a_make_target_that_fails_says_so(
    make: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    assert make("scenario", "NODES=0").returncode == 2
    assert make("no-such-target").returncode == 2
