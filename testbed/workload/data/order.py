"""Which samples a replica trains on, and when: a law of seed and step, not of the cluster.

The samples of all epochs, each in its own random order, form one endless sequence. Global batch k
is its k-th stretch of ``global_batch_size``; the replica of rank r takes the r-th part of it. One
node and many nodes therefore see the same global batches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def epoch_order(samples: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return an epoch's permutation of the samples.

    RandomState's streams are frozen for all versions of numpy (NEP 19), Generator's are not.
    """
    return np.random.RandomState([seed, epoch]).permutation(samples).astype(np.int64)


class GlobalOrder:
    """The endless sequence of samples for a seed. Keeps one epoch in memory."""

    def __init__(self, samples: int, *, global_batch_size: int, seed: int) -> None:
        if samples < 1 or global_batch_size < 1:
            raise ValueError(f"{samples} samples in batches of {global_batch_size}")
        self._samples = samples
        self._global_batch_size = global_batch_size
        self._seed = seed
        self._epoch = -1
        self._order = np.empty(0, np.int64)

    def batch(self, step: int) -> NDArray[np.int64]:
        """Return the sample numbers of a step's global batch; steps count from 0."""
        first = step * self._global_batch_size
        last = first + self._global_batch_size
        parts = []
        while first < last:
            epoch, offset = divmod(first, self._samples)
            part = self._epoch_order(epoch)[offset : offset + last - first]
            parts.append(part)
            first += len(part)
        return np.concatenate(parts)

    def shard(self, step: int, *, rank: int, replicas: int) -> NDArray[np.int64]:
        """Return one replica's contiguous part of a step's global batch."""
        size, rest = divmod(self._global_batch_size, replicas)
        if rest or not 0 <= rank < replicas:
            raise ValueError(f"rank {rank} of {replicas}, global batch {self._global_batch_size}")
        return self.batch(step)[rank * size : (rank + 1) * size]

    def _epoch_order(self, epoch: int) -> NDArray[np.int64]:
        if epoch != self._epoch:
            self._order = epoch_order(self._samples, seed=self._seed, epoch=epoch)
            self._epoch = epoch
        return self._order


def evaluation_bounds(samples: int, *, rank: int, replicas: int) -> tuple[int, int]:
    """Return the stretch of the test set that a replica evaluates; together they cover it once."""
    return samples * rank // replicas, samples * (rank + 1) // replicas
