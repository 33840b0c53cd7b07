"""A perceptron 784-700-500-10 with ReLU, 905 010 parameters: much to send, little to compute."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

PARAMETERS = 905_010


def build(seed: int) -> Any:
    """Return the model: (B, 28, 28, 1) from 0 to 1 -> (B, 10) logits."""

    def first_weights(layer: int) -> Any:
        return keras.initializers.GlorotUniform(seed=seed * 100 + layer)

    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Flatten(),  # -> (B, 784)
            layers.Dense(700, activation="relu", kernel_initializer=first_weights(1)),
            layers.Dense(500, activation="relu", kernel_initializer=first_weights(2)),
            layers.Dense(10, kernel_initializer=first_weights(3)),
        ],
        name="mlp",
    )
