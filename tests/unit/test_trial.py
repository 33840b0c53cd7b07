import hashlib
import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import ConfigError
from testbed.experiment.trial import (
    Script,
    Trial,
    budget_fault,
    canonical_json,
    default_cpu_cores,
    trial_of,
)
from testbed.scenario import generate, vnx
from testbed.scenario.model import Shape
from testbed.workload.job import MODELS, OPTIMIZERS, STRATEGIES, WORKLOADS, Job

TEN = Shape(rate_bps=10_000_000)

trials = st.builds(
    Trial,
    nodes=st.sampled_from([1, 2, 4, 8]),
    shape=st.just(Shape(delay_us=500))
    | st.builds(
        Shape,
        rate_bps=st.integers(1000, 10**9),
        delay_us=st.integers(0, 10**6),
        loss=st.sampled_from([0.0, 0.01, 0.5]),
        burst_bytes=st.none() | st.integers(1, 10**6),
        queue_us=st.sampled_from([50_000, 1000]),
    ),
    cpu_cores=st.integers(1, 100).map(lambda percent: percent / 100),
    global_batch_size=st.integers(1, 100).map(lambda k: 8 * k),
    model=st.sampled_from(MODELS),
    learning_rate=st.floats(1e-6, 1),
    repeat=st.integers(0, 9),
    seed=st.integers(0, 10**6),
)


def test_the_id_is_the_hash_of_the_canonical_description():
    trial = Trial(nodes=2, shape=TEN, cpu_cores=0.4)
    text = (
        '{"backend":"lxc","cpu_cores":0.4,"evaluate_every":0,"global_batch_size":256,'
        '"learning_rate":0.003,"memory_bytes":2147483648,"mode":"isolated","model":"lenet5",'
        '"nodes":2,"optimizer":"adam","rate_bps":10000000,"repeat":0,"scaling":"strong","seed":1,'
        '"steps":25,"strategy":"multi-worker-mirrored","switch":"openvswitch","warmup_steps":2,'
        '"workload":"fashion-mnist"}'
    )
    assert canonical_json(trial.description()) == text
    assert trial.trial_id == hashlib.sha256(text.encode()).hexdigest()[:12]


def test_ids_do_not_change_between_versions():
    """Results of old sweeps are found by them: if this fails, resuming breaks for everyone."""
    assert Trial(nodes=2, shape=TEN, cpu_cores=0.4).trial_id == "5bc234b816c3"
    assert Trial(nodes=1, cpu_cores=0.4).trial_id == "44a591a03466"


@given(trials)
def test_equal_trials_have_equal_ids_and_json_keeps_the_description(trial):
    assert replace(trial).trial_id == trial.trial_id
    assert json.loads(canonical_json(trial.description())) == trial.description()


@given(trials, trials)
def test_different_trials_have_different_ids(one, other):
    assert (one.trial_id == other.trial_id) == (one == other)


@given(trials.filter(lambda trial: trial.nodes > 1), st.sampled_from([*fields(Trial)]))
def test_every_field_is_part_of_the_id(trial, field):
    other = {
        "nodes": 1,
        "shape": Shape(rate_bps=1001),
        "switch": "virtual_bridge",
        "memory_bytes": 2**20,
        "cpu_cores": 2.0,
        "mode": "shared",
        "backend": "netns",
        "workload": "mnist",
        "model": "another",
        "strategy": "another",
        "scaling": "weak",
        "global_batch_size": 8000,
        "steps": 999,
        "warmup_steps": 3,
        "optimizer": "sgd",
        "learning_rate": 2.0,
        "evaluate_every": 7,
        "repeat": 99,
        "seed": 10**9,
        "script": Script(file="train.py", sha256="0"),
        "own_scenario": generate.star(trial.nodes, TEN),
    }
    changed = {field.name: other[field.name]}
    if field.name == "mode":
        changed["cpu_cores"] = None
    assert replace(trial, **changed).trial_id != trial.trial_id


@given(trials)
def test_one_node_is_the_same_trial_whatever_the_link(trial):
    alone = replace(trial, nodes=1)
    assert alone == replace(alone, shape=TEN)
    assert "rate_bps" not in alone.record_keys()
    assert alone.shape == Shape()


@given(trials)
def test_the_scenario_and_the_job_are_those_described(trial):
    scenario = trial.scenario()
    assert len(scenario.nodes) == trial.nodes
    assert {node.shape for node in scenario.nodes} == {trial.shape}
    assert {node.cpu_cores for node in scenario.nodes} == {trial.cpu_cores}
    job = trial.job(data_dir="/data")
    assert isinstance(job, Job)
    assert (job.model, job.seed, job.data_dir) == (trial.model, trial.seed, "/data")
    assert job.global_batch_size == trial.global_batch_size


def test_a_scripts_trial_depends_on_its_bytes_and_arguments_only(tmp_path):
    script = Script(file="train.py", sha256="ab", args=("--epochs", "3"), folder=tmp_path)
    trial = Trial(nodes=3, shape=TEN, cpu_cores=0.2, script=script)
    assert trial.workload == trial.record_keys()["workload"] == "script"
    assert replace(trial, learning_rate=0.5, model="mlp").trial_id == trial.trial_id
    assert replace(trial, script=replace(script, folder=tmp_path.parent)).trial_id == trial.trial_id
    assert replace(trial, script=replace(script, args=())).trial_id != trial.trial_id
    assert "model" not in trial.record_keys()
    job = trial.job(script="/opt/testbed/script/train.py")
    assert (job.workload, job.args) == ("script", ("--epochs", "3"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nodes": 0}, "expected 1 to 250"),
        ({"nodes": 251}, "expected 1 to 250"),
        ({"nodes": 3}, "write global_batch_size 255 or 258"),
        ({"nodes": 300, "global_batch_size": 4}, "expected 1 to 250"),
        ({"nodes": 8, "global_batch_size": 4}, "write global_batch_size 8,"),
        ({"nodes": 2, "cpu_cores": None}, "every node needs a CPU budget"),
        ({"nodes": 2, "mode": "shared"}, "leave out the CPU budget"),
        ({"nodes": 2, "steps": 0}, "expected at least 1"),
        ({"nodes": 2, "own_scenario": generate.star(4, TEN)}, "the scenario has 4"),
    ],
)
def test_an_impossible_trial_cannot_be_built(settings, message):
    with pytest.raises(ConfigError, match=message):
        Trial(**{"cpu_cores": 0.4, **settings})


def test_the_default_budget_is_four_fifths_of_the_cores_shared_and_rounded_down():
    assert default_cpu_cores(2, 4) == 0.4
    assert default_cpu_cores(2, 3) == 0.53
    assert default_cpu_cores(2, 1) == 1.0
    assert default_cpu_cores(64, 4) == 1.0
    assert default_cpu_cores(2, 160) == 0.01
    assert default_cpu_cores(2, 161) == 0.0


@given(st.integers(1, 512), st.integers(1, 250))
def test_the_default_budget_always_fits(cores, nodes):
    cpu_cores = default_cpu_cores(cores, nodes)
    assert budget_fault(cores, [cpu_cores] * nodes) is None
    if 0 < cpu_cores < 1:
        assert budget_fault(cores, [cpu_cores + 0.01] * nodes) is not None


def test_a_budget_fault_has_the_numbers():
    assert budget_fault(2, [0.5] * 4) == (
        "4 nodes x 0.5 cores are 2 cores, but 80 % of this host's 2 are 1.6: give each at most "
        "0.4, or use fewer nodes, or mode shared (overhead trends only)"
    )


@given(trials)
def test_a_generated_scenario_file_gives_the_trial_it_came_from(trial):
    read = vnx.parse(vnx.render(trial.scenario()), source="lan.xml")
    settings = {
        name: getattr(trial, name)
        for name in ("model", "global_batch_size", "learning_rate", "repeat", "seed")
    }
    assert trial_of(read, host_cores=1000, **settings) == trial


def test_a_lonely_node_of_a_file_is_the_same_trial_whatever_its_link():
    one = trial_of(generate.star(1, TEN, cpu_cores=0.4), host_cores=2)
    assert one == Trial(nodes=1, cpu_cores=0.4)


def test_nodes_that_differ_are_part_of_the_trial():
    unequal = generate.star(4, TEN, cpu_cores=(0.4, 0.4, 0.4, 0.1))
    trial = trial_of(unequal, host_cores=2)
    assert trial.scenario() == unequal
    assert trial.budgets == (0.4, 0.4, 0.4, 0.1)
    assert "scenario_sha256" in trial.description()
    slow = generate.star(2, (TEN, Shape(rate_bps=1_000_000)))
    assert trial_of(slow, host_cores=2).shape.rate_bps == 1_000_000
    with pytest.raises(ConfigError, match=r"2 nodes are 2\.1 cores, but 80 %"):
        trial_of(generate.star(2, TEN, cpu_cores=(2.0, 0.1)), host_cores=2)


def test_mode_shared_has_no_budgets_and_a_scenario_of_its_own_name():
    trial = trial_of(generate.star(2, TEN, cpu_cores=0.4), host_cores=2, mode="shared")
    assert trial.budgets == ()
    assert trial.scenario().name == "lan-2n-10mbit-shared"
    assert "cpu_cores" not in trial.description()


def test_the_words_are_those_of_the_job():
    from testbed.experiment import config

    assert {*config.ModelName.__args__} == {*MODELS}
    assert {*config.StrategyName.__args__} == {*STRATEGIES}
    assert {*config.WorkloadName.__args__, "script"} == {*WORKLOADS}
    assert {*config.Sweep.model_fields["optimizer"].annotation.__args__} == {*OPTIMIZERS}
