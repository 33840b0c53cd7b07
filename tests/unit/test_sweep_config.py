import itertools
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sweeps import sweep_of

from testbed.errors import ConfigError
from testbed.experiment.config import EXAMPLES, Entry, Matrix, Sweep, load_sweep, parse_sweep
from testbed.experiment.sweep import estimate_s

SHIPPED = Path(__file__).parents[2] / "scenarios"


def kinds(sweep, host_cores=64):
    return [(trial.nodes, trial.shape.rate_bps) for trial in sweep.trials(host_cores)]


def test_one_node_runs_once_per_repeat_whatever_the_bandwidths():
    assert kinds(sweep_of("repeats: 1\n", nodes="1, 2")) == [(1, None), (2, 10**7), (2, 10**8)]
    assert [trial.repeat for trial in sweep_of(nodes="1").trials(2)] == [0, 1, 2]


def test_repeat_r_uses_seed_plus_r():
    trials = sweep_of("seed: 40\n", nodes="2", bandwidth="10mbit").trials(2)
    assert [(trial.repeat, trial.seed) for trial in trials] == [(0, 40), (1, 41), (2, 42)]


def test_exclude_takes_out_and_include_adds():
    text = (
        "repeats: 1\n"
        "exclude:\n  - {nodes: 4, bandwidth: 10mbit}\n"
        "include:\n  - {nodes: 8, bandwidth: 1gbit}\n  - {nodes: 16}\n"
    )
    assert kinds(sweep_of(text, nodes="2, 4")) == [
        *[(2, 10**7), (2, 10**8), (4, 10**8), (8, 10**9), (16, 10**7), (16, 10**8)]
    ]


def test_what_is_excluded_may_be_included_again_otherwise():
    text = (
        "repeats: 1\nexclude:\n  - {nodes: 4, bandwidth: 10mbit}\n"
        "include:\n  - {nodes: 4, bandwidth: 10mbit, delay: 20ms, loss: 1%}\n"
    )
    *_, added = sweep_of(text).trials(2)
    assert (added.nodes, added.shape.delay_us, added.shape.loss) == (4, 20_000, 0.01)


def test_every_axis_of_the_matrix_is_varied():
    text = (
        "matrix:\n  nodes: [1, 2]\n  bandwidth: [10mbit, unlimited]\n  delay: [0ms, 20ms]\n"
        "  loss: [0%, 1%]\n  model: [lenet5, mlp]\n  workload: [mnist, fashion-mnist]\n"
        "  strategy: [multi-worker-mirrored]\n  mode: [isolated, shared]\n"
        "  global_batch_size: [64, 256]\n"
    )
    sweep = parse_sweep(f"format: 1\nrepeats: 1\n{text}".encode(), source="all.yaml")
    trials = sweep.trials(2)
    assert len(trials) == len({trial.trial_id for trial in trials}) == 2**4 + 2**7
    assert {trial.cpu_cores for trial in trials if trial.mode == "isolated"} == {0.8}
    assert {trial.cpu_cores for trial in trials if trial.mode == "shared"} == {None}


def test_weak_scaling_gives_each_node_the_same_batch():
    sweep = sweep_of("scaling: weak\nper_replica_batch_size: 64\n", nodes="1, 3, 5")
    assert {(t.nodes, t.global_batch_size) for t in sweep.trials(64)} == {
        *[(1, 64), (3, 192), (5, 320)]
    }


def test_the_budget_is_the_same_at_every_number_of_nodes():
    assert {trial.cpu_cores for trial in sweep_of().trials(2)} == {0.4}
    assert {trial.cpu_cores for trial in sweep_of().trials(64)} == {1.0}
    assert {trial.cpu_cores for trial in sweep_of("cpu: 30%\n").trials(2)} == {0.3}
    assert {trial.cpu_cores for trial in sweep_of("mode: shared\n").trials(2)} == {None}


def test_budgets_beyond_the_cores_are_refused_when_the_cores_are_known():
    sweep = sweep_of("cpu: 0.4\n")
    assert sweep.trials(2)
    with pytest.raises(ConfigError, match=r"small.yaml:5: 4 nodes x 0.4 cores are 1.6 cores"):
        sweep.trials(1)
    assert sweep_of("mode: shared\n").trials(1)


def test_quantities_and_numbers_are_read_as_people_write_them():
    sweep = sweep_of("memory: 512M\nlearning_rate: 1e-3\ncpu: 25%\n")
    assert (sweep.memory, sweep.learning_rate, sweep.cpu) == (512 * 2**20, 0.001, 0.25)


def test_the_name_is_the_files_unless_it_says_one():
    text = b"format: 1\nmatrix:\n  nodes: [1]\n"
    assert parse_sweep(text, source="scenarios/home.yaml").name == "home"
    assert parse_sweep(b"name: other\n" + text, source="scenarios/home.yaml").name == "other"
    with pytest.raises(ConfigError, match="names the results folder"):
        parse_sweep(text, source="My Home.yaml")


def test_every_key_has_an_example_that_is_right():
    keys = {*Sweep.model_fields, *Matrix.model_fields, *Entry.model_fields}
    assert keys == {*EXAMPLES}
    other = {"per_replica_batch_size", "nodes", "bandwidth", "delay", "loss"}
    text = "".join(f"{key}: {EXAMPLES[key]}\n" for key in EXAMPLES if key not in other)
    assert parse_sweep(text.encode(), source="examples.yaml", host_cores=4)


@pytest.mark.parametrize(
    ("name", "trials", "minutes"),
    [("quick", 21, 10), ("home-network", 39, 30), ("high-performance", 27, 15)],
)
def test_the_sweeps_that_we_ship_are_right_and_not_too_long(name, trials, minutes):
    found = load_sweep(SHIPPED / f"{name}.yaml", host_cores=2).trials(2)
    assert len(found) == trials
    assert sum(estimate_s(trial, host_cores=2) for trial in found) < minutes * 60
    assert f"{trials} trials" in (SHIPPED / f"{name}.yaml").read_text()


def test_quick_is_what_the_readme_says():
    sweep = load_sweep(SHIPPED / "quick.yaml")
    assert (sweep.model, sweep.workload, sweep.mode) == ("lenet5", "fashion-mnist", "isolated")
    assert sweep.matrix.nodes == (1, 2, 4)
    assert sweep.matrix.bandwidth == (10**7, 3 * 10**7, 10**8)
    assert sweep.repeats == 3


nodes = st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=1, unique=True)
rates = st.lists(st.sampled_from(["1mbit", "10mbit", "1gbit"]), min_size=1, unique=True)


@given(nodes, rates, st.integers(1, 4))
def test_the_trials_are_the_product_with_one_node_counted_once(nodes, rates, repeats):
    sweep = sweep_of(
        f"repeats: {repeats}\n", nodes=", ".join(map(str, nodes)), bandwidth=", ".join(rates)
    )
    trials = sweep.trials(64)
    pairs = {(n, rate if n > 1 else None) for n, rate in itertools.product(nodes, rates)}
    assert len(trials) == len({trial.trial_id for trial in trials}) == repeats * len(pairs)
    assert sweep.trials(64) == trials


words = st.sampled_from([*EXAMPLES, "", "x", "10mbit", "1, 2", "&a", "*a", "!!set", "[", "{", "- "])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


def refused(content: bytes) -> str:
    """Return what is said against a sweep, or ''; anything but a ConfigError is a bug."""
    try:
        parse_sweep(content, source="odd.yaml", host_cores=2).trials(2)
    except ConfigError as error:
        return str(error)
    return ""


@given(st.dictionaries(st.sampled_from([*EXAMPLES]), values, max_size=6))
def test_no_values_whatever_are_a_bug(settings):
    right = {"format": 1, "matrix": {"nodes": [1, 2], "bandwidth": ["10mbit"]}}
    said = refused(yaml.safe_dump(right | settings).encode())
    assert not said or "\n  odd.yaml:" in said


@given(st.lists(words, max_size=12).map("\n".join) | st.text() | st.binary().map(repr))
def test_no_text_whatever_is_a_bug(text):
    assert "\n  odd.yaml:" in refused(text.encode("utf-8", "replace"))
