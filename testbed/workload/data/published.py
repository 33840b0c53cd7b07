"""The data sets that can be trained on, and the SHA-256 of every file.

Hashes are of the uncompressed files: re-compressed copies differ. Fashion-MNIST's were computed
from Debian's dataset-fashion-mnist 0.0~git20200523.55506a9-1; MNIST's belong to the files whose
MD5 (6bbc9ace..., a25bea73..., 2646ac64..., 27ae3e4e...) is the one published for the canonical set.
"""

from __future__ import annotations

import hashlib
from pathlib import Path


class DataFault(Exception):
    """A data set is missing, or its bytes are not the published ones; says what to do."""


TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"

PUBLISHED: dict[str, dict[str, str]] = {
    "fashion-mnist": {
        TEST_IMAGES: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        TEST_LABELS: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        TRAIN_IMAGES: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        TRAIN_LABELS: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    },
    "mnist": {
        TEST_IMAGES: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        TEST_LABELS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        TRAIN_IMAGES: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        TRAIN_LABELS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    },
}


def published(name: str) -> dict[str, str]:
    """Return the files of a data set, each with its SHA-256.

    Raises:
        DataFault: there is none of that name.
    """
    if name not in PUBLISHED:
        raise DataFault(f"data set {name!r}: expected one of {', '.join(sorted(PUBLISHED))}")
    return PUBLISHED[name]


def check(content: bytes, expected: str, *, source: str, mend: str) -> None:
    """Refuse bytes that are not the published ones; ``mend`` tells the reader what to do.

    Raises:
        DataFault: with the hash found and the hash expected.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataFault(
            f"{source}: SHA-256 {found} ({len(content)} bytes), expected {expected}: "
            f"these are not the published bytes; {mend}"
        )


def verify(folder: Path, name: str, *, mend: str) -> None:
    """Check every file of a data set in a folder.

    Raises:
        DataFault: a file is missing or its bytes are not the published ones.
    """
    for file, expected in published(name).items():
        check(read(folder / file, mend=mend), expected, source=str(folder / file), mend=mend)


def read(path: Path, *, mend: str) -> bytes:
    """Return a file's bytes.

    Raises:
        DataFault: there is no such file, or it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataFault(f"{path}: {error.strerror}; {mend}") from error
