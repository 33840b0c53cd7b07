"""Each file in faults_yaml has its faults marked where they are: `# fault: part of the message`."""

import re
from pathlib import Path

import pytest

from testbed.errors import ConfigError
from testbed.experiment.config import load_sweep, parse_sweep
from testbed.experiment.marked_yaml import MAX_BYTES

FAULTS = sorted((Path(__file__).parent / "faults_yaml").glob("*.yaml"))
RIGHT = b"format: 1\nmatrix:\n  nodes: [1, 2]\n  bandwidth: [10mbit]\n"


def told(path: Path) -> list[tuple[int, str]]:
    with pytest.raises(ConfigError) as refused:
        load_sweep(path, host_cores=2)
    listed = str(refused.value).splitlines()[1:]
    found = [re.fullmatch(rf"  {re.escape(str(path))}:(\d+): (.*)", line) for line in listed]
    assert all(found), listed
    return [(int(match[1]), match[2]) for match in found if match]


@pytest.mark.parametrize("path", FAULTS, ids=[path.stem for path in FAULTS])
def test_each_fault_is_told_with_its_line_and_no_other_is(path):
    lines = path.read_text().splitlines()
    marked = [
        (number, line.split("# fault: ")[1])
        for number, line in enumerate(lines, start=1)
        if "# fault: " in line
    ]
    found = told(path)
    assert [line for line, _ in found] == [line for line, _ in marked], found
    for (_, message), (_, part) in zip(found, marked, strict=True):
        assert part in message


def test_the_file_that_the_faults_were_made_from_is_right():
    assert parse_sweep(RIGHT, source="right.yaml", host_cores=2).name == "right"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"# only a comment\n", "empty"),
        (b"\xff\xfe\x00", "not text in UTF-8"),
        (b"format: 1\n\x00", "not valid YAML"),
        (b"matrix: " + b"[" * 5000, "nested too deeply"),
        (b"format: " + b"1" * 5000, "is no tag:yaml.org,2002:int"),
        (b"a: &a [*a]\n" + RIGHT, "anchors and aliases"),
        (b"? [1]\n: 2\n" + RIGHT, "a key must be a word"),
    ],
)
def test_what_is_not_a_sweep_is_refused(content, message):
    with pytest.raises(ConfigError, match=message):
        parse_sweep(content, source="odd.yaml")


def test_a_huge_file_is_refused_before_it_is_read_whole(tmp_path):
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(100 * 1024**2)
    with pytest.raises(ConfigError, match=f"larger than {MAX_BYTES // 1024} KiB"):
        load_sweep(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load_sweep(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_sweep(tmp_path)
