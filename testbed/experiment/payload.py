"""What a trial pushes to its nodes: the workload's code, the job, and data or a user's script."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement

from testbed.errors import DataError, InputError
from testbed.experiment.trial import Script, Trial
from testbed.host.push import Blob, folder_blobs
from testbed.workload.data.fetch import default_cache_dir, fetch
from testbed.workload.data.published import DataFault

REMOTE = PurePosixPath("/opt/testbed")
JOB_FILE = REMOTE / "job.json"
CLUSTER_FILE = REMOTE / "cluster.json"
RESULT_FILE = REMOTE / "result.json"
_DATA_FOLDER = REMOTE / "data"
_SCRIPT_FOLDER = REMOTE / "script"
_MAX_SCRIPT_BYTES = 200_000_000
_WORKLOAD = Path(__file__).resolve().parent.parent / "workload"

Files = Mapping[PurePosixPath, Blob]


def trial_files(trial: Trial, say: Callable[[str], None]) -> Files:
    """Return every file that all nodes of a trial get, by its path there.

    Raises:
        DataError: the data set cannot be had, or its bytes are not the published ones.
    """
    files = dict(_code())
    if trial.script is not None:
        job = trial.job(script=str(_SCRIPT_FOLDER / trial.script.file))
        files |= _script_files(trial.script)
    else:
        job = trial.job(data_dir=str(_DATA_FOLDER / trial.workload))
        files |= _data(trial.workload, say)[1]
    files[JOB_FILE] = Blob.of(job.to_json().encode())
    return files


def data_sha256(workload: str, say: Callable[[str], None]) -> str:
    """Return the hash of a data set, fetched and verified if that was not done before.

    Raises:
        DataError: it cannot be had, or its bytes are not the published ones.
    """
    return _data(workload, say)[0]


def load_script(file: Path, folder: Path | None, args: tuple[str, ...]) -> Script:
    """Return a user's script with what is pushed beside it: its folder, or the file alone.

    A requirements.txt in the folder is checked against this Python, which the nodes share.

    Raises:
        InputError: no such file, it is not in the folder, or a requirement is not met.
    """
    if not file.is_file():
        raise InputError(f"script {file}: there is no such file; give the path of a Python file")
    if folder is None:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        return Script(file=file.name, sha256=digest, args=args, folder=file)
    if not file.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"script {file}: expected a file in {folder}, the folder that is pushed")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > _MAX_SCRIPT_BYTES:
        raise InputError(
            f"{folder} has {size / 1e6:.0f} MB, expected at most {_MAX_SCRIPT_BYTES / 1e6:.0f}: "
            "it is pushed to every node; give a folder with the script alone"
        )
    check_requirements(folder / "requirements.txt")
    blobs = folder_blobs(folder, PurePosixPath("/"), pattern="*")
    listing = "".join(f"{blob.sha256}  {path}\n" for path, blob in blobs.items())
    return Script(
        file=file.resolve().relative_to(folder.resolve()).as_posix(),
        sha256=hashlib.sha256(listing.encode()).hexdigest(),
        args=args,
        folder=folder,
    )


def check_requirements(file: Path) -> None:
    """Return if this Python, which the nodes share, meets a requirements file, or there is none.

    Raises:
        InputError: lists every line that is not met.
    """
    if not file.is_file():
        return
    faults = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if not text or text.startswith("-"):
            continue
        try:
            wanted = Requirement(text)
        except InvalidRequirement as error:
            faults.append(f"line {number}: {text!r} is no requirement: {error}")
            continue
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        try:
            found = version(wanted.name)
        except PackageNotFoundError:
            faults.append(f"line {number}: {wanted} is not installed")
            continue
        if not wanted.specifier.contains(found, prereleases=True):
            faults.append(f"line {number}: {wanted}, but {wanted.name} {found} is installed")
    if faults:
        raise InputError(
            f"{file}: nodes use the Python that runs testbed, and it does not meet this:\n  "
            + "\n  ".join(faults)
            + f"\n  to mend it: .venv/bin/pip install -r {file}"
        )


def _script_files(script: Script) -> Files:
    if script.folder.is_file():
        return {_SCRIPT_FOLDER / script.file: Blob.of(script.folder.read_bytes())}
    return folder_blobs(script.folder, _SCRIPT_FOLDER, pattern="*")


@cache
def _code() -> Files:
    return folder_blobs(_WORKLOAD, REMOTE / "workload", pattern="*.py")


@cache
def _data(name: str, say: Callable[[str], None]) -> tuple[str, Files]:
    try:
        found = fetch(name, default_cache_dir(), log=say)
    except DataFault as error:
        raise DataError(str(error)) from error
    target = _DATA_FOLDER / name
    files = {
        target / file: Blob(content=(found.folder / file).read_bytes(), sha256=sha256)
        for file, sha256 in sorted(found.files.items())
    }
    return found.sha256, files
