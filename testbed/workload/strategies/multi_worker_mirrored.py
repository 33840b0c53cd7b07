"""Synchronous data parallelism: tf.distribute.MultiWorkerMirroredStrategy with a ring all-reduce.

Every worker holds all weights and trains on its part of each global batch. One worker alone runs
the same code. Keras 3 layers and optimizers in a loop of our own, because Keras 3's ``model.fit``
does not work under this strategy (keras issue 20585).
"""

from __future__ import annotations

import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from .. import collective, models
from ..cluster_spec import ClusterSpec
from ..job import Job

OPTIMIZERS = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}
EVALUATION_CHUNK = 1000  # images at once: bounds the memory of the first convolution to 19 MB


def join(job: Job, spec: ClusterSpec) -> MirroredTrainer:
    """Return the trainer once all workers are up; blocks until then."""
    os.environ["TF_CONFIG"] = spec.tf_config()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=collective.ring_options()
    )
    return MirroredTrainer(strategy, job)


class MirroredTrainer:
    """A worker under MultiWorkerMirroredStrategy; see ``strategies.Trainer``."""

    def __init__(self, strategy: Any, job: Job) -> None:
        self._strategy = strategy
        self._global_batch_size = job.global_batch_size
        with strategy.scope():
            self._model = models.build(job.model, job.seed)
            self._optimizer = OPTIMIZERS[job.optimizer](job.learning_rate)
            self._optimizer.build(self._model.trainable_variables)
        self._shapes = [tuple(weight.shape) for weight in self._model.trainable_variables]
        self._state = [variable.numpy() for variable in self._variables()]
        self._train = tf.function(self._traced_train_step, autograph=False)
        self._score = tf.function(
            self._traced_score,
            input_signature=[
                tf.TensorSpec([None, 28, 28], tf.uint8),
                tf.TensorSpec([None], tf.uint8),
            ],
            autograph=False,
        )
        self._sum = tf.function(
            self._traced_sum, input_signature=[tf.TensorSpec([3], tf.float32)], autograph=False
        )

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        return sum(int(np.prod(shape)) for shape in self._shapes)

    @property
    def gradient_bytes(self) -> int:
        """Four bytes per parameter: float32 on the wire."""
        return 4 * self.parameters

    def train_step(self, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> float:
        """Train on this replica's part of a global batch and return the global mean loss."""
        return float(self._train(tf.constant(images), tf.constant(labels)))

    def evaluate(self, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> tuple[float, float]:
        """Return the mean loss and accuracy over what all replicas were given."""
        sums = np.zeros(3, np.float32)  # loss, correct, samples: exact below 2**24 samples
        for first in range(0, len(images), EVALUATION_CHUNK):
            chunk = slice(first, first + EVALUATION_CHUNK)
            sums += self._score(tf.constant(images[chunk]), tf.constant(labels[chunk])).numpy()
        loss, correct, samples = self._sum(tf.constant(sums)).numpy()
        return float(loss / samples), float(correct / samples)

    def barrier(self) -> None:
        """Return when all workers have called it: a dummy all-reduce."""
        self._sum(tf.zeros(3)).numpy()

    def rewind(self) -> None:
        """Put weights and optimizer back to where they were when the trainer was made."""
        for variable, value in zip(self._variables(), self._state, strict=True):
            variable.assign(value)

    def _variables(self) -> list[Any]:
        return [*self._model.variables, *self._optimizer.variables]

    def _logits(self, images: Any, *, training: bool) -> Any:
        # (B, 28, 28) from 0 to 255 -> (B, 28, 28, 1) from 0 to 1
        return self._model(tf.cast(images, tf.float32)[..., None] / 255.0, training=training)

    def _losses(self, logits: Any, labels: Any) -> Any:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.cast(labels, tf.int32), logits=logits
        )

    def _traced_train_step(self, images: Any, labels: Any) -> Any:
        weights = self._model.trainable_variables

        def on_replica(images: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                losses = self._losses(self._logits(images, training=True), labels)
                # this replica's part of the global mean
                loss = tf.reduce_sum(losses) / self._global_batch_size
            gradients = tape.gradient(loss, [weight.value for weight in weights])
            return collective.all_reduce_sum(collective.pack([*gradients, loss]))

        total = self._strategy.run(on_replica, args=(images, labels))
        # Outside the replica context Keras takes gradients as they are; inside it would reduce
        # them once more.
        self._optimizer.apply(collective.unpack(total, self._shapes), weights)
        return total[-1]

    def _traced_score(self, images: Any, labels: Any) -> Any:
        logits = self._logits(images, training=False)
        hits = tf.equal(tf.argmax(logits, axis=1), tf.cast(labels, tf.int64))
        return tf.stack(
            [
                tf.reduce_sum(self._losses(logits, labels)),
                tf.reduce_sum(tf.cast(hits, tf.float32)),
                tf.cast(tf.size(labels), tf.float32),
            ]
        )

    def _traced_sum(self, values: Any) -> Any:
        return self._strategy.run(collective.all_reduce_sum, args=(values,))
