"""Files reach a node by their hash, whole, under any name; its scripts run in a real sh."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testbed.errors import CommandFailed
from testbed.host import push
from testbed.host.base import Completed
from testbed.host.local import LocalHost
from testbed.host.push import Blob, folder_blobs, push_to_all


class ShellHost:
    """A node as sshd would be one: every command is one line for its shell."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.fed_bytes = 0

    def run(
        self, argv: Sequence[str], *, timeout_s: float = 30.0, stdin: str = "", check: bool = True
    ) -> Completed:
        out = self._shell(argv, stdin.encode(), check=check)
        return Completed(exit_status=0, stdout=out.decode(), stderr="")

    def feed(
        self, argv: Sequence[str], stdin: Iterable[bytes], *, timeout_s: float = 120.0
    ) -> bytes:
        content = b"".join(stdin)
        self.fed_bytes += len(content)
        return self._shell(argv, content, check=True)

    def _shell(self, argv: Sequence[str], stdin: bytes, *, check: bool) -> bytes:
        done = subprocess.run(
            ("sh", "-c", shlex.join(argv)),
            input=stdin,
            capture_output=True,
            cwd=self.folder,
            timeout=20,
        )
        if check and done.returncode:
            raise CommandFailed(self.name, argv, done.returncode, done.stderr.decode())
        return done.stdout


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShellHost:
    return node_in(tmp_path, monkeypatch)


def node_in(folder: Path, patch: pytest.MonkeyPatch) -> ShellHost:
    patch.setattr(push, "STORE", PurePosixPath(folder, "store"))
    return ShellHost("n1", folder)


def send(node: ShellHost, files: dict[str, bytes]) -> int:
    target = PurePosixPath(node.folder, "target")
    blobs = {target / name: Blob.of(content) for name, content in files.items()}
    return push_to_all([node], blobs)["n1"]  # type: ignore[list-item]


def arrived(node: ShellHost) -> dict[str, bytes]:
    target = node.folder / "target"
    found = [path for path in target.rglob("*") if path.is_file()]
    return {str(path.relative_to(target)): path.read_bytes() for path in found}


def test_files_arrive_under_their_names_and_are_sent_once(node: ShellHost) -> None:
    files = {"a/one": b"1" * 1000, "a/same": b"1" * 1000, "b/two": b"2" * 10, "empty": b""}
    assert send(node, files) == 1010  # equal contents travel once
    assert arrived(node) == files
    fed = node.fed_bytes
    assert send(node, files) == 0
    assert node.fed_bytes == fed
    assert send(node, files | {"c": b"new"}) == 3
    assert arrived(node) == files | {"c": b"new"}


def test_a_changed_file_replaces_the_old_one_whole(node: ShellHost) -> None:
    send(node, {"job": b"old"})
    before = (node.folder / "target/job").open("rb")
    with before:
        send(node, {"job": b"newer"})
        assert before.read() == b"old"  # who had it open still reads the old one
    assert arrived(node) == {"job": b"newer"}
    send(node, {"job": b"old"})
    assert arrived(node) == {"job": b"old"}


def test_what_arrives_damaged_is_refused_and_not_kept(
    node: ShellHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(push, "_archive", lambda blobs: archive_of_another_content(blobs))
        with pytest.raises(CommandFailed, match=r"FAILED|did NOT match"):
            send(node, {"data": b"right"})
    assert arrived(node) == {}
    assert [path for path in (node.folder / "store").iterdir() if path.is_file()] == []
    assert send(node, {"data": b"right"}) == 5
    assert arrived(node) == {"data": b"right"}


archive = push._archive


def archive_of_another_content(blobs: dict[str, Blob]) -> bytes:
    return archive({name: Blob(content=b"wrong", sha256=name) for name in blobs})


hostile = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="\0/"), min_size=1, max_size=20
).filter(lambda name: name not in (".", "..") and len(name.encode()) < 200)


@settings(max_examples=40, deadline=None)
@example(["a b", "it's", '"', "$(touch pwned)", "`touch pwned`", "a\nb", "-rf", "*", "~", "é"])
@example(["; touch pwned;", "\\", "!", "#x", "a.part", " "])
@given(st.lists(hostile, min_size=1, max_size=5, unique=True))
def test_any_name_is_a_name_and_never_a_command(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("node")
    files = {
        **{name: name.encode() for name in names},
        **{f"in/{name}/{name}": b"deep" for name in names},
    }
    files = {name: content for name, content in files.items() if f"{name}.part" not in files}
    files.pop("in", None)
    with pytest.MonkeyPatch.context() as patch:
        node = node_in(folder, patch)
        send(node, files)
        assert arrived(node) == files
        # Nothing else was made: no part is left, and no name was run.
        assert {path.name for path in folder.iterdir()} == {"store", "target"}


@settings(max_examples=25, deadline=None)
@given(hostile, st.binary(max_size=300), st.sampled_from([0o644, 0o600, 0o755]))
def test_a_local_file_is_put_and_got_back_whole_under_any_name(
    tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes, mode: int
) -> None:
    folder = tmp_path_factory.mktemp("local")
    path = PurePosixPath(folder, "new", name)
    LocalHost().put(content, path, mode=mode)
    assert LocalHost().get(path) == content
    assert (Path(path).stat().st_mode & 0o777) == mode
    assert [entry.name for entry in (folder / "new").iterdir()] == [name]


def test_a_folders_blobs_are_its_matching_files_sorted(tmp_path: Path) -> None:
    for name in ("z.py", "a.py", "sub/m.py", "note.txt", "__pycache__/a.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = folder_blobs(tmp_path, PurePosixPath("/opt"), pattern="*.py")
    assert [str(path) for path in found] == ["/opt/a.py", "/opt/sub/m.py", "/opt/z.py"]
    assert found[PurePosixPath("/opt/a.py")] == Blob.of(b"a.py")
