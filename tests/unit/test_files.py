from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed import files


def test_a_file_is_written_with_its_missing_folders(tmp_path: Path) -> None:
    target = tmp_path / "results" / "look" / "a.json"
    files.write_whole(target, b"{}\n")
    assert target.read_bytes() == b"{}\n"
    assert target.stat().st_mode & 0o777 == 0o644


def test_a_mode_is_exact_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        files.write_whole(tmp_path / "key", b"x", mode=0o640)
    finally:
        os.umask(before)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o640


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.json"
    target.write_bytes(b"old")

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        files.write_whole(target, b"new")
    assert target.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_link_at_the_target_is_replaced_and_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"keep")
    link = tmp_path / "a.xml"
    link.symlink_to(precious)
    files.write_whole(link, b"new")
    assert precious.read_bytes() == b"keep"
    assert not link.is_symlink()


def test_a_link_that_waits_beside_the_target_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"keep")
    monkeypatch.setattr(files.secrets, "token_hex", lambda length: "guessed")
    (tmp_path / ".a.xml.guessed.part").symlink_to(precious)
    with pytest.raises(FileExistsError):
        files.write_whole(tmp_path / "a.xml", b"new")
    assert precious.read_bytes() == b"keep"


@pytest.mark.parametrize(
    ("uid", "gid", "expected"),
    [
        ("1000", "1001", (1000, 1001)),
        ("", "", None),
        ("-1", "-1", None),
        ("1000", "x", None),
        ("²", "1", None),
    ],
)
def test_the_owner_is_the_user_behind_sudo(
    monkeypatch: pytest.MonkeyPatch, uid: str, gid: str, expected: tuple[int, int] | None
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", uid)
    monkeypatch.setenv("SUDO_GID", gid)
    assert files.owner() == expected


def test_nobody_gives_files_away_who_is_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("SUDO_UID", "0")
    monkeypatch.setenv("SUDO_GID", "0")
    assert files.owner() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives files to another user")
def test_under_sudo_files_and_new_folders_belong_to_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_UID", "12345")
    monkeypatch.setenv("SUDO_GID", "12346")
    target = tmp_path / "new" / "deep" / "a.json"
    files.write_whole(target, b"{}")
    for made in (target, target.parent, target.parent.parent):
        assert (made.stat().st_uid, made.stat().st_gid) == (12345, 12346)
    assert tmp_path.stat().st_uid == 0
