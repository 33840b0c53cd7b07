"""Who takes part, and which of them this node is: CLUSTER.json and what is derived from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from .job import FORMAT, JobError, read_object

ADDRESS = re.compile(r"([A-Za-z0-9.-]+):([0-9]{1,5})")


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """The cluster as one worker sees it. It cannot be built wrong.

    ``workers`` are ``host:port``, in rank order; ``device`` is the interface of the training LAN.

    Raises:
        JobError: with one line for each fault.
    """

    workers: tuple[str, ...]
    rank: int
    names: tuple[str, ...] = ()
    device: str = ""

    def __post_init__(self) -> None:
        faults = list(self._faults())
        if faults:
            raise JobError("\n".join(faults))

    def _faults(self) -> Iterator[str]:
        if not self.workers:
            yield "workers: expected at least one host:port"
        for worker in self.workers:
            match = ADDRESS.fullmatch(worker)
            if not match or not 1 <= int(match[2]) <= 65535:
                yield f"worker {worker!r}: expected host:port"
        if len(set(self.workers)) != len(self.workers):
            yield f"workers {', '.join(self.workers)}: expected each address once"
        if not 0 <= self.rank < max(1, len(self.workers)):
            yield f"rank {self.rank}: expected 0 to {len(self.workers) - 1}"
        if self.names and len(self.names) != len(self.workers):
            yield f"{len(self.names)} names for {len(self.workers)} workers: expected as many"

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self.workers)

    def to_json(self) -> str:
        """Return CLUSTER.json."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ClusterSpec:
        """Return the cluster that CLUSTER.json describes.

        Raises:
            JobError: not such a text.
        """
        values = read_object(text, what="cluster")
        try:
            return cls(
                workers=tuple(map(str, values["workers"])),
                rank=int(values["rank"]),
                names=tuple(map(str, values.get("names", ()))),
                device=str(values.get("device", "")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise JobError(f"cluster: {error!r}; expected workers, rank, names, device") from error

    def tf_config(self) -> str:
        """Return the value of TF_CONFIG, as tf.distribute reads it."""
        return json.dumps(
            {
                "cluster": {"worker": list(self.workers)},
                "task": {"type": "worker", "index": self.rank},
            }
        )

    def rendezvous(self) -> dict[str, str]:
        """Return the variables by which frameworks find their peers (TensorFlow, PyTorch)."""
        host, port = self.workers[0].rsplit(":", 1)
        variables = {
            "TF_CONFIG": self.tf_config(),
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
        }
        if self.device:
            variables["GLOO_SOCKET_IFNAME"] = self.device
        return variables


def node_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that computes: one thread, no GPU, no proxy.

    One node has one compute thread at every N (METHOD: isolated mode). The variables are read when
    TensorFlow is imported, so they are set before. oneDNN stays on: its kernels are the faster
    ones (docs/workloads.md has the measurement). TensorFlow's log keeps errors.
    """
    proxies = {"http_proxy", "https_proxy", "all_proxy", "grpc_proxy"}
    kept = {name: value for name, value in environ.items() if name.lower() not in proxies}
    return kept | {
        "CUDA_VISIBLE_DEVICES": "-1",
        "KERAS_BACKEND": "tensorflow",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "TF_NUM_INTEROP_THREADS": "2",
        "TF_NUM_INTRAOP_THREADS": "1",
    }
