from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workload import models, strategies
from testbed.workload.cluster_spec import ClusterSpec, node_environment
from testbed.workload.data.published import PUBLISHED
from testbed.workload.job import (
    MAX_SEED,
    MODELS,
    OPTIMIZERS,
    SCRIPT,
    STRATEGIES,
    WORKLOADS,
    Job,
    JobError,
)

JOB = Job(workload="fashion-mnist", data_dir="/data")


@given(
    st.builds(
        Job,
        workload=st.sampled_from([name for name in WORKLOADS if name != SCRIPT]),
        model=st.sampled_from(MODELS),
        optimizer=st.sampled_from(OPTIMIZERS),
        steps=st.integers(1, 10_000),
        global_batch_size=st.integers(1, 4096),
        learning_rate=st.floats(1e-6, 10.0),
        seed=st.integers(0, MAX_SEED),
    )
)
def test_a_job_reads_back_as_it_was_written(job: Job) -> None:
    assert Job.from_json(job.to_json()) == job


def test_equal_jobs_are_equal_text() -> None:
    assert JOB.to_json() == replace(JOB).to_json()
    assert JOB.to_json() == json.dumps(
        json.loads(JOB.to_json()), sort_keys=True, separators=(",", ":")
    )


def test_a_script_and_its_arguments_survive() -> None:
    job = Job(workload="script", script="/opt/x/train.py", args=("--steps", "3; rm -rf /"))
    assert Job.from_json(job.to_json()).args == ("--steps", "3; rm -rf /")


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(JobError) as told:
        Job(workload="imagenet", steps=0, learning_rate=float("nan"), optimizer="lamb")
    lines = str(told.value).splitlines()
    assert [line.split()[0] for line in lines] == [
        "workload",
        "optimizer",
        "steps",
        "learning_rate",
    ]
    assert "expected one of fashion-mnist, mnist, script" in lines[0]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"steps": True}, "steps"),
        ({"steps": 1.5}, "steps"),
        ({"warmup_steps": 0}, "warmup_steps"),
        ({"seed": -1}, "seed"),
        ({"seed": MAX_SEED + 1}, "seed"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"learning_rate": "0.1"}, "learning_rate"),
        ({"global_batch_size": None}, "global_batch_size"),
        ({"args": "words"}, "args"),
        ({"script": "x.py"}, "only the workload 'script'"),
        ({"workload": "script"}, "needs the path"),
    ],
)
def test_a_job_cannot_be_built_wrong(change: dict[str, object], word: str) -> None:
    values = {field.name: getattr(JOB, field.name) for field in fields(Job)}
    with pytest.raises(JobError, match=word):
        Job(**{**values, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "expected JSON"),
        ("[]", "expected a JSON object"),
        ('{"format":2,"workload":"mnist"}', "format 2, expected 1"),
        ('{"workload":"mnist"}', "format None"),
        ('{"format":1}', "no workload"),
        ('{"format":1,"workload":"mnist","epochs":3}', "'epochs': no such field"),
    ],
)
def test_a_foreign_job_file_is_refused(text: str, word: str) -> None:
    with pytest.raises(JobError, match=word):
        Job.from_json(text)


def test_nodes_that_do_not_divide_the_batch_are_refused_with_a_batch_that_does() -> None:
    assert JOB.per_replica_batch_size(4) == 64
    with pytest.raises(JobError, match="for example 255"):
        JOB.per_replica_batch_size(3)


def test_every_name_a_job_accepts_has_something_behind_it() -> None:
    assert set(WORKLOADS) == {*PUBLISHED, SCRIPT}
    assert set(MODELS) == set(models.MODULES)
    assert set(STRATEGIES) == set(strategies.MODULES)


def test_a_cluster_reads_back_as_it_was_written() -> None:
    spec = ClusterSpec(
        workers=("10.10.0.1:7000", "10.10.0.2:7000"), rank=1, names=("n1", "n2"), device="eth1"
    )
    assert ClusterSpec.from_json(spec.to_json()) == spec


def test_tf_config_is_what_tf_distribute_reads() -> None:
    spec = ClusterSpec(workers=("10.10.0.1:7000", "10.10.0.2:7000"), rank=1)
    assert json.loads(spec.tf_config()) == {
        "cluster": {"worker": ["10.10.0.1:7000", "10.10.0.2:7000"]},
        "task": {"type": "worker", "index": 1},
    }


def test_a_script_finds_its_peers_by_the_usual_variables() -> None:
    spec = ClusterSpec(workers=("10.10.0.1:7000", "10.10.0.2:7001"), rank=1, device="eth1")
    found = spec.rendezvous()
    assert found.pop("TF_CONFIG") == spec.tf_config()
    assert found == {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "10.10.0.1",
        "MASTER_PORT": "7000",
        "GLOO_SOCKET_IFNAME": "eth1",
    }


@pytest.mark.parametrize(
    "change",
    [
        {"workers": ()},
        {"workers": ("10.10.0.1",)},
        {"workers": ("10.10.0.1:99999",)},
        {"workers": ("10.10.0.1:70", "10.10.0.1:70")},
        {"rank": 2},
        {"rank": -1},
        {"names": ("n1",)},
    ],
)
def test_a_cluster_cannot_be_built_wrong(change: dict[str, object]) -> None:
    values: dict[str, object] = {"workers": ("10.10.0.1:70", "10.10.0.2:70"), "rank": 0}
    with pytest.raises(JobError):
        ClusterSpec(**{**values, **change})  # type: ignore[arg-type]


def test_a_cluster_file_without_workers_is_refused() -> None:
    with pytest.raises(JobError, match="workers"):
        ClusterSpec.from_json('{"format":1,"rank":0}')


def test_a_node_computes_with_one_thread_and_without_proxies() -> None:
    environment = node_environment({"HTTPS_PROXY": "http://x", "grpc_proxy": "y", "HOME": "/root"})
    assert environment["HOME"] == "/root"
    assert not {name for name in environment if "proxy" in name.lower()}
    assert environment["OMP_NUM_THREADS"] == environment["TF_NUM_INTRAOP_THREADS"] == "1"
