"""IDX, the format of the MNIST family: a big-endian header, then unsigned bytes."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from . import published as pub

UNSIGNED_BYTE = 0x08
PUSH_AGAIN = "push the data set to this node again"


@dataclass(frozen=True, kw_only=True)
class Split:
    """Images (n, 28, 28) and labels (n,), both uint8, in the published order."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """A whole data set in memory."""

    train: Split
    test: Split


def decode(content: bytes, *, source: str) -> NDArray[np.uint8]:
    """Return the array of an IDX file: two zeros, the type, the rank, the sizes, the data.

    Raises:
        pub.DataFault: not IDX, not unsigned bytes, or too short or long for its header.
    """
    if len(content) < 4 or content[:3] != bytes((0, 0, UNSIGNED_BYTE)):
        raise pub.DataFault(f"{source}: expected an IDX file of unsigned bytes, uncompressed")
    begin = 4 + 4 * content[3]
    if len(content) < begin:
        raise pub.DataFault(f"{source}: the header ends after {len(content)} bytes")
    shape = struct.unpack_from(f">{content[3]}I", content, 4)
    if len(content) - begin != math.prod(shape):
        raise pub.DataFault(
            f"{source}: {len(content) - begin} bytes of data, expected {math.prod(shape)} "
            f"for the shape {shape}"
        )
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def encode(array: NDArray[np.uint8]) -> bytes:
    """Return the IDX file of an array of unsigned bytes."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, UNSIGNED_BYTE, array.ndim, *array.shape)
    return header + np.ascontiguousarray(array, dtype=np.uint8).tobytes()


def load(name: str, folder: Path) -> Arrays:
    """Return a data set from a folder of uncompressed IDX files, every byte verified.

    Hashing costs 0.2 s of one core for the 55 MB, while TensorFlow is being imported.

    Raises:
        pub.DataFault: a file is missing, or its bytes are not the published ones.
    """
    arrays = {}
    for file, expected in pub.published(name).items():
        content = pub.read(folder / file, mend=PUSH_AGAIN)
        pub.check(content, expected, source=str(folder / file), mend=PUSH_AGAIN)
        arrays[file] = decode(content, source=file)
    return Arrays(
        train=Split(images=arrays[pub.TRAIN_IMAGES], labels=arrays[pub.TRAIN_LABELS]),
        test=Split(images=arrays[pub.TEST_IMAGES], labels=arrays[pub.TEST_LABELS]),
    )
