"""All-reduce over the workers: its options, and many tensors as one.

One step sends one vector: every gradient, flattened, and the loss as its last number. A ring moves
2 (N-1)/N of its bytes per node, whatever the number of tensors, and pays the latency of
2 (N-1) messages once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def ring_options() -> Any:
    """Return the options of a ring all-reduce (CommunicationOptions)."""
    return tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )


def all_reduce_sum(value: Any) -> Any:
    """Return the sum of a tensor over all replicas. To be called inside ``strategy.run``."""
    context = tf.distribute.get_replica_context()
    placed = tf.identity(value)  # an argument of a traced function has no device yet
    return context.all_reduce(tf.distribute.ReduceOp.SUM, placed, options=ring_options())


def pack(tensors: Sequence[Any]) -> Any:
    """Return the tensors as one vector."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def unpack(vector: Any, shapes: Sequence[Sequence[int]]) -> list[Any]:
    """Return the tensors that ``pack`` made a vector of; whatever follows them is left out."""
    tensors, offset = [], 0
    for shape in shapes:
        size = math.prod(shape)
        tensors.append(tf.reshape(vector[offset : offset + size], shape))
        offset += size
    return tensors
