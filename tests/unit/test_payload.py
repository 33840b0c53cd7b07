"""What a trial pushes: code, job and data, or a user's script that fits this Python."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path, PurePosixPath

import pytest

from testbed.errors import InputError
from testbed.experiment import payload
from testbed.experiment.payload import check_requirements, load_script, trial_files
from testbed.experiment.trial import Trial


def requirements(folder: Path, text: str) -> Path:
    file = folder / "requirements.txt"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n\n   \n",
        "numpy\n",
        "NumPy >= 1.0  # a comment\n",
        f"numpy=={version('numpy')}\n",
        "paramiko>=1,!=0.1\n",
        "no-such-package ; python_version < '3'\n",
        "-r other.txt\n--index-url https://example.org\n-e .\n",
        "pytest[testing]\n",
    ],
)
def test_requirements_that_this_python_meets_are_taken(text: str, tmp_path: Path) -> None:
    check_requirements(requirements(tmp_path, text))


def test_no_requirements_file_asks_for_nothing(tmp_path: Path) -> None:
    check_requirements(tmp_path / "requirements.txt")


def test_every_unmet_requirement_is_told_with_its_line_and_the_way_out(tmp_path: Path) -> None:
    file = requirements(
        tmp_path, "numpy\nno-such-package\n# fine\nnumpy>=999\nnumpy>>1\nother-missing==1.0\n"
    )
    with pytest.raises(InputError) as refused:
        check_requirements(file)
    message = str(refused.value)
    assert "line 2: no-such-package is not installed" in message
    assert f"line 4: numpy>=999, but numpy {version('numpy')} is installed" in message
    assert "line 5: 'numpy>>1' is no requirement" in message
    assert "line 6: other-missing==1.0 is not installed" in message
    assert f"pip install -r {file}" in message
    assert "line 1" not in message


def test_a_script_alone_is_its_own_file(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("print(1)")
    (tmp_path / "beside.py").write_text("not pushed")
    script = load_script(file, None, ("--x",))
    assert (script.file, script.args) == ("train.py", ("--x",))
    files = trial_files(Trial(nodes=1, cpu_cores=0.4, script=script), lambda _: None)
    own = [path for path in files if path.is_relative_to("/opt/testbed/script")]
    assert own == [PurePosixPath("/opt/testbed/script/train.py")]


def test_a_script_with_its_folder_is_pushed_whole(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.py").write_text("import helper")
    (tmp_path / "helper.py").write_text("x = 1")
    script = load_script(tmp_path / "sub" / "train.py", tmp_path, ())
    files = trial_files(Trial(nodes=1, cpu_cores=0.4, script=script), lambda _: None)
    assert files[PurePosixPath("/opt/testbed/script/helper.py")].content == b"x = 1"
    job = json.loads(files[payload.JOB_FILE].content)
    assert (job["workload"], job["script"]) == ("script", "/opt/testbed/script/sub/train.py")
    (tmp_path / "helper.py").write_text("x = 2")
    assert load_script(tmp_path / "sub" / "train.py", tmp_path, ()).sha256 != script.sha256


def test_a_trial_pushes_every_module_of_the_workload_and_no_bytecode() -> None:
    code = payload._code()
    source = Path(payload.__file__).parent.parent / "workload"
    assert {path.relative_to("/opt/testbed/workload").as_posix() for path in code} == {
        path.relative_to(source).as_posix() for path in source.rglob("*.py")
    }


def test_a_script_that_cannot_be_pushed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.py"
    with pytest.raises(InputError, match="there is no such file"):
        load_script(file, None, ())
    file.write_text("pass")
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match=r"expected a file in .*other"):
        load_script(file, tmp_path / "other", ())
    requirements(tmp_path, "no-such-package\n")
    with pytest.raises(InputError, match="line 1: no-such-package is not installed"):
        load_script(file, tmp_path, ())
    (tmp_path / "requirements.txt").unlink()
    monkeypatch.setattr(payload, "_MAX_SCRIPT_BYTES", 3)
    with pytest.raises(InputError, match="pushed to every node"):
        load_script(file, tmp_path, ())
