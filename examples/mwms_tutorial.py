"""Multi-worker training with TensorFlow alone, as its tutorials write it.

The script knows nothing of the testbed. TF_CONFIG names the workers; each one trains on its part of
every batch, and prints a JSON line per step. It learns a surface, z = sin(3x) cos(2y), from samples
that every worker makes itself from the same seed.

    python mwms_tutorial.py --steps 20 --batch 64
"""

import argparse
import json
import os

import numpy as np
import tensorflow as tf


def samples(count, seed):
    points = np.random.RandomState(seed).uniform(-1.0, 1.0, (count, 2)).astype("float32")
    heights = np.sin(3 * points[:, :1]) * np.cos(2 * points[:, 1:])
    return points, heights.astype("float32")


def build_model():
    return tf.keras.Sequential(
        [
            tf.keras.Input((2,)),
            tf.keras.layers.Dense(64, activation="tanh"),
            tf.keras.layers.Dense(64, activation="tanh"),
            tf.keras.layers.Dense(1),
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="samples per step, of all workers")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    options = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    cluster = json.loads(os.environ.get("TF_CONFIG", "{}"))
    rank = cluster.get("task", {}).get("index", 0)
    workers = strategy.num_replicas_in_sync

    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = build_model()
        optimizer = tf.keras.optimizers.Adam(options.learning_rate)
        optimizer.build(model.trainable_variables)

    data = (
        tf.data.Dataset.from_tensor_slices(samples(4096, seed=1))
        .shard(workers, rank)
        .repeat()
        .batch(options.batch // workers)
    )

    @tf.function
    def train_step(points, heights):
        def on_worker(points, heights):
            with tf.GradientTape() as tape:
                errors = tf.square(model(points, training=True) - heights)
                loss = tf.reduce_sum(errors) / options.batch
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        loss = strategy.run(on_worker, args=(points, heights))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)

    for step, (points, heights) in zip(range(1, options.steps + 1), data, strict=False):
        loss = train_step(points, heights)
        print(json.dumps({"step": step, "loss": float(loss)}), flush=True)


if __name__ == "__main__":
    main()
