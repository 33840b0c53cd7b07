"""The referee of the architecture: a stage imports only from those before it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import testbed

PACKAGE = Path(testbed.__file__).parent
REPOSITORY = PACKAGE.parent

# In the order in which data flows; those of one line do not import each other.
STAGES: tuple[tuple[str, ...], ...] = (
    ("errors", "units", "bounds", "files"),
    ("scenario",),
    ("workload",),
    ("host",),
    ("network",),
    ("provision",),
    ("experiment",),
    ("analysis",),
    ("cli",),
)
LINE = {stage: number for number, stages in enumerate(STAGES) for stage in stages}
# Between stages of the first line: errors is what the others raise.
ALLOWED_BESIDE = {("units", "errors"), ("bounds", "errors"), ("files", "errors")}

# One library, one home: where it may be imported, at run time.
HOMES = {
    "paramiko": ("host/ssh.py",),
    "cryptography": ("host/ssh.py",),
    "subprocess": ("host/local.py", "provision/lab.py", "workload/"),
    "lxml": ("scenario/",),
    "matplotlib": ("analysis/figures/",),
    "jinja2": ("analysis/report.py",),
    "pandas": ("experiment/store.py", "analysis/"),
    "scipy": ("analysis/",),
    "yaml": ("experiment/",),
    "tensorflow": ("workload/",),
    "keras": ("workload/",),
    "typer": ("cli/",),
    "rich": ("cli/",),
}
MODULES = sorted(PACKAGE.rglob("*.py"))


def stage_of(module: Path) -> str:
    return module.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(module: Path) -> Iterator[tuple[int, str, int]]:
    """Yield (line, name, level of relative import) of every import, also within functions."""
    for node in ast.walk(ast.parse(module.read_bytes())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, 0
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}".lstrip("."), node.level


def offences(module: Path) -> Iterator[str]:
    own = stage_of(module)
    where = module.relative_to(REPOSITORY)
    for line, name, level in imports(module):
        if own == "workload" and name.split(".")[0] == "testbed":
            yield f"{where}:{line}: workload runs on nodes, where there is no {name}"
        if own != "workload" and level:
            yield f"{where}:{line}: write the import of {name} in full"
        if level or not name.startswith("testbed."):
            continue
        other = name.split(".")[1]
        if other == own or (own, other) in ALLOWED_BESIDE or other not in LINE:
            continue
        if own in LINE and LINE[other] >= LINE[own]:
            yield f"{where}:{line}: {own} imports {name}, which comes after it"


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(PACKAGE)))
def test_a_stage_imports_only_from_those_before_it(module: Path) -> None:
    assert list(offences(module)) == []


def test_every_module_belongs_to_a_stage() -> None:
    outside = {"__init__", "__main__"}
    assert {stage_of(module) for module in MODULES} - outside == {*LINE}


def test_a_relative_import_of_the_workload_stays_in_it() -> None:
    for module in PACKAGE.glob("workload/**/*.py"):
        depth = len(module.relative_to(PACKAGE / "workload").parts)
        for line, name, level in imports(module):
            assert level <= depth, f"{module}:{line}: {name} climbs out of workload"


def test_every_library_has_one_home() -> None:
    strangers = []
    for module in MODULES:
        where = module.relative_to(PACKAGE).as_posix()
        for line, name, level in imports(module):
            homes = HOMES.get(name.split(".")[0])
            if homes and not level and not where.startswith(homes):
                strangers.append(f"{where}:{line}: {name}, at home in {', '.join(homes)}")
    assert strangers == []


def test_what_is_imported_is_declared_or_comes_with_python() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    declared = {Requirement(text).name.lower() for text in project["dependencies"]}
    names = {"yaml": "pyyaml", "tensorflow": "tensorflow-cpu"}
    bring_along = {"numpy": "pandas", "keras": "tensorflow-cpu", "markupsafe": "jinja2"}
    found = {
        name.split(".")[0] for module in MODULES for _, name, level in imports(module) if not level
    }
    found -= set(sys.stdlib_module_names) | {"testbed"}
    assert {(names | bring_along).get(name, name) for name in found} <= declared


def test_a_host_key_that_is_not_pinned_is_never_taken() -> None:
    for module in MODULES:
        assert not {"AutoAddPolicy", "WarningPolicy"} & set(re.findall(r"\w+", module.read_text()))


@pytest.mark.parametrize("idle", ["utils", "util", "helpers", "common", "misc", "manager"])
def test_no_module_is_without_an_idea(idle: str) -> None:
    assert not [module for module in MODULES if idle in module.stem.split("_")]


@pytest.mark.parametrize(
    ("own", "text", "refused"),
    [
        ("host/x.py", "from testbed.provision import lab", True),
        ("host/x.py", "def f():\n    import testbed.cli", True),
        ("host/x.py", "from testbed.scenario import vnx", False),
        ("units.py", "from testbed.scenario.model import Node", True),
        ("units.py", "from testbed.errors import UnitError", False),
        ("errors.py", "from testbed import units", True),
        ("workload/x.py", "from testbed.errors import InputError", True),
        ("workload/x.py", "from .job import Job", False),
        ("provision/x.py", "from .lab import Lab", True),
    ],
)
def test_the_referee_sees_an_offence(
    own: str, text: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "testbed" / own
    module.parent.mkdir(parents=True, exist_ok=True)
    module.write_text(text)
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path / "testbed")
    monkeypatch.setattr(sys.modules[__name__], "REPOSITORY", tmp_path)
    assert bool(list(offences(module))) is refused
