"""Ways of distributing the work, by name.

A strategy's module has ``join(job, spec) -> Trainer``. It is imported when it is asked for: a node
pays for the framework that it uses, and the host for none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..cluster_spec import ClusterSpec
from ..job import Job

MODULES = {"multi-worker-mirrored": "multi_worker_mirrored"}

# Keras imports these if it finds them, for plots and tables that no worker makes. Without them
# TensorFlow is imported in 1.8 s instead of 2.6 and takes 70 MB less (TensorFlow 2.21, 2026-11).
OPTIONAL = ("PIL", "matplotlib", "pandas", "scipy")


class Trainer(Protocol):
    """One worker's share of a distributed training, seen from the timed loop.

    Every method but the first two is collective: all workers call it, in the same order.
    """

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        ...

    @property
    def gradient_bytes(self) -> int:
        """What a worker contributes to one exchange of gradients, in bytes."""
        ...

    def train_step(self, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> float:
        """Train on this replica's part of a global batch and return the global mean loss.

        All device work of the step is finished when it returns.
        """
        ...

    def evaluate(self, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> tuple[float, float]:
        """Return the mean loss and accuracy over what all replicas were given."""
        ...

    def barrier(self) -> None:
        """Return when all workers have called it."""
        ...

    def rewind(self) -> None:
        """Put weights and optimizer back to where they were when the trainer was made."""
        ...


class _Module(Protocol):
    def join(self, job: Job, spec: ClusterSpec) -> Trainer: ...


def load(name: str) -> _Module:
    """Import a strategy's module, and with it its framework (seconds)."""
    with _passed_over(OPTIONAL):
        module: _Module = import_module(f".{MODULES[name]}", __package__)
    return module


@contextmanager
def _passed_over(packages: tuple[str, ...]) -> Iterator[None]:
    """Let these packages be missing for whoever looks for them meanwhile."""
    absent = [package for package in packages if package not in sys.modules]
    for package in absent:
        sys.modules[package] = None  # type: ignore[assignment]  # as the import system defines it
    try:
        yield
    finally:
        for package in absent:
            del sys.modules[package]
