import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sweeps import record_of, sweep_of

from testbed.errors import BusyError, ConfigError, TestbedError
from testbed.experiment import store
from testbed.experiment.config import load_sweep
from testbed.experiment.store import open_sweep


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "small"


def opened(folder, sweep, *, host_cores=2):
    with open_sweep(folder, sweep, host_cores=host_cores) as trials:
        return trials


def save_all(folder, trials, status="ok"):
    for trial in trials:
        store.save(folder, record_of(trial, status=status))


def test_a_record_comes_back_as_it_was_saved_without_what_is_none(folder):
    trial = sweep_of().trials(2)[0]
    path = store.save(folder, record_of(trial, final_loss=None, losses=[0.5, 0.25]))
    assert path == folder / "trials" / f"{trial.trial_id}-a1.json"
    assert store.load(path) == {"format": 1, **record_of(trial, losses=[0.5, 0.25])}
    assert store.records(folder) == [store.load(path)]


def test_a_record_is_never_overwritten_nor_saved_half(folder):
    trial = sweep_of().trials(2)[0]
    path = store.save(folder, record_of(trial))
    with pytest.raises(ValueError, match="never overwritten"):
        store.save(folder, record_of(trial, status="failed"))
    with pytest.raises(ValueError, match="Out of range float"):
        store.save(folder, record_of(trial, attempt=2, final_loss=float("nan")))
    with pytest.raises(ValueError, match="not a record"):
        store.save(folder, record_of(trial, attempt=2, status="fine"))
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"format": 2}', "record format 2, expected 1"),
        (b"{}", "record format None"),
        (b"[]", "record format None"),
        (b'{"format": 1', "not a record"),
        (b"\xff", "not a record"),
        (b'{"format": 1}', "no trial_id, attempt, status"),
        (b'{"format": 1, "trial_id": "b", "attempt": 1, "status": "ok"}', "it was renamed"),
    ],
)
def test_a_foreign_record_is_refused_with_what_to_do(folder, content, message):
    path = folder / "trials" / "0123456789ab-a1.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        store.records(folder)


def test_files_that_are_no_records_are_left_alone(folder):
    trials = opened(folder, sweep_of())
    (folder / "trials" / ".0123456789ab-a1.json.beef.part").write_text("{half")
    (folder / "trials" / "notes.txt").write_text("mine")
    assert store.records(folder) == []
    assert store.remaining(folder, trials) == trials


def test_a_trial_is_done_with_a_result_or_after_two_attempts(folder):
    ok, unstable, twice, once, none, *_ = trials = sweep_of().trials(2)
    store.save(folder, record_of(ok, 1, "failed"))
    store.save(folder, record_of(ok, 2))
    store.save(folder, record_of(unstable, 1, "non_converged"))
    store.save(folder, record_of(twice, 1, "invalid"))
    store.save(folder, record_of(twice, 2, "failed"))
    store.save(folder, record_of(once, 1, "failed"))
    assert store.remaining(folder, trials) == (once, none, *trials[5:])
    assert [store.next_attempt(folder, trial.trial_id) for trial in (once, none)] == [2, 1]


def test_the_frozen_sweep_is_the_file_with_the_budget_written_out(folder):
    sweep = sweep_of("# a comment\nsteps: 7\n")
    trials = opened(folder, sweep)
    text = (folder / "sweep.yaml").read_text()
    assert text.startswith("cpu: 0.4  # given by the testbed: 80 % of 2 cores")
    assert "# a comment\nsteps: 7\n" in text
    assert load_sweep(folder / "sweep.yaml").trials(64) == trials


def test_a_sweep_that_says_its_budget_is_frozen_byte_by_byte(folder):
    sweep = sweep_of("cpu: 0.2\n")
    opened(folder, sweep)
    assert (folder / "sweep.yaml").read_bytes() == sweep.content


def test_the_same_sweep_goes_on_on_a_machine_with_other_cores_only_with_its_budget(folder):
    opened(folder, sweep_of())
    with pytest.raises(ConfigError, match=r"cpu: was 0.4, is 0.8 .*: set `cpu: 0.4` explicitly"):
        opened(folder, sweep_of(), host_cores=4)
    opened(folder, sweep_of("cpu: 0.4\n"), host_cores=4)


def test_added_values_and_repeats_reuse_finished_trials(folder):
    save_all(folder, opened(folder, sweep_of("cpu: 0.2\n")))
    more = sweep_of(
        "cpu: 0.2\nrepeats: 4\n", nodes="1, 2, 4, 8", bandwidth="10mbit, 1gbit, 100mbit"
    )
    trials = opened(folder, more)
    missing = store.remaining(folder, trials)
    assert len(missing) == len(trials) - 15
    assert all(
        trial.repeat == 3 or trial.nodes == 8 or trial.shape.rate_bps == 10**9 for trial in missing
    )
    assert (folder / "sweep.yaml").read_bytes() == more.content


def test_a_setting_may_become_an_axis(folder):
    save_all(folder, opened(folder, sweep_of()))
    text = "matrix:\n  nodes: [1, 2, 4]\n  bandwidth: [10mbit, 100mbit]\n  model: [mlp, lenet5]\n"
    (folder.parent / "more.yaml").write_text(f"format: 1\nname: small\n{text}")
    trials = opened(folder, load_sweep(folder.parent / "more.yaml"))
    assert {trial.model for trial in store.remaining(folder, trials)} == {"mlp"}


@pytest.mark.parametrize(
    ("changed", "messages"),
    [
        (sweep_of("steps: 30\n"), ["steps: was 25, is 30"]),
        (
            sweep_of("backend: netns\nmemory: 1G\nseed: 2\n"),
            ["backend: was lxc, is netns", "memory: was 2G, is 1G", "seed: was 1, is 2"],
        ),
        (sweep_of("repeats: 2\n"), ["repeats: was 3, is 2"]),
        (sweep_of("cpu: 0.3\n"), ["cpu: was 0.4, is 0.3"]),
        (sweep_of("mode: shared\n"), ["mode: was isolated, is shared"]),
        (sweep_of("learning_rate: 1e-2\n"), ["learning_rate: was 0.003, is 0.01"]),
        (sweep_of(nodes="1, 2", bandwidth="10mbit"), ["nodes: the matrix no longer has 4"]),
        (sweep_of(bandwidth="10mbit, 30mbit"), ["bandwidth: the matrix no longer has 100mbit"]),
        (
            sweep_of("exclude: [{nodes: 4, bandwidth: 10mbit}]\n"),
            ["3 of its trials are not in the matrix now"],
        ),
        (
            sweep_of(nodes="1, 2, 4, 8"),
            ["cpu: was 0.4, is 0.2", "8 nodes at 0.4 are too many", "sets `cpu: 0.2` explicitly"],
        ),
    ],
)
def test_a_changed_setting_is_refused_with_both_values(folder, changed, messages):
    opened(folder, sweep_of())
    before = (folder / "sweep.yaml").read_bytes()
    with pytest.raises(ConfigError) as refused:
        opened(folder, changed)
    for message in [*messages, "give it another name, such as `name: small-2`"]:
        assert message in str(refused.value)
    assert (folder / "sweep.yaml").read_bytes() == before


def test_the_description_and_the_comments_may_change(folder):
    opened(folder, sweep_of("description: one\n"))
    opened(folder, sweep_of("description: two\n# why not\n"))
    assert "description: two" in (folder / "sweep.yaml").read_text()


def test_a_folder_of_something_else_is_refused_and_left_as_it_is(folder):
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds thesis.tex and no sweep.yaml"):
        opened(folder, sweep_of())
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]
    with pytest.raises(ConfigError, match="is a file"):
        opened(folder / "thesis.tex", sweep_of())


def test_a_frozen_sweep_of_another_version_is_refused(folder):
    opened(folder, sweep_of())
    (folder / "sweep.yaml").write_text("format: 9\n")
    with pytest.raises(ConfigError, match="cannot be read by this version"):
        opened(folder, sweep_of())


def test_a_folder_that_a_killed_command_had_only_locked_is_taken_over(folder):
    folder.mkdir()
    (folder / store.LOCK).write_text("4711\n")
    (folder / ".sweep.yaml.beef.part").write_text("form")
    assert len(opened(folder, sweep_of())) == 15


def test_a_second_command_is_told_the_pid_of_the_first(folder):
    with (
        open_sweep(folder, sweep_of(), host_cores=2),
        pytest.raises(BusyError, match=rf"pid {os.getpid()}\).*kill -INT {os.getpid()}"),
    ):
        opened(folder, sweep_of())
    assert opened(folder, sweep_of())


def test_a_place_that_cannot_be_written_is_told(folder, monkeypatch):
    folder.parent.joinpath("file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written: File exists"):
        opened(folder.parent / "file" / "small", sweep_of())
    folder.mkdir()
    (folder / store.LOCK).symlink_to(folder.parent / "file")
    with pytest.raises(ConfigError, match="cannot be written"):
        opened(folder, sweep_of())

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_whole", full)
    with pytest.raises(TestbedError, match="No space left on device; mend that"):
        store.save(folder, record_of(sweep_of().trials(2)[0]))


HOLD = """
import sys, time
from pathlib import Path
from testbed.experiment.store import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_of_a_killed_command_is_free(folder):
    root = Path(__file__).parents[2]
    holder = subprocess.Popen(
        (sys.executable, "-c", HOLD, str(folder)), stdout=subprocess.PIPE, cwd=root
    )
    with holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BusyError, match=f"pid {holder.pid}"):
            opened(folder, sweep_of())
        holder.send_signal(signal.SIGKILL)
    assert opened(folder, sweep_of())


def test_the_table_is_flat_and_has_a_row_for_each_attempt(folder):
    trials = opened(folder, sweep_of())
    store.save(folder, record_of(trials[0], 1, "failed"))
    store.save(folder, record_of(trials[0], 2, bytes_sent={"n1": 10}))
    store.save(folder, record_of(trials[1]))
    frame = store.table(store.records(folder))
    assert len(frame) == 3
    assert [*frame.columns[:3]] == ["trial_id", "attempt", "status"]
    assert {"overhead_s.push", "bytes_sent.n1", "trial.steps"} <= {*frame.columns}
    assert frame["bytes_sent.n1"].count() == 1
    assert frame["step_times_s"][0] == [0.1, 0.2]
    assert store.table([]).empty


def test_the_csv_holds_lists_as_json(folder, tmp_path):
    import pandas as pd

    save_all(folder, opened(folder, sweep_of()))
    path = store.export_csv(store.records(folder), tmp_path / "out.csv")
    frame = pd.read_csv(path)
    assert len(frame) == 15
    assert json.loads(frame["step_times_s"][0]) == [0.1, 0.2]
