"""LeNet-5 for 28 x 28 images, 61 706 parameters.

LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition (1998),
as it is commonly rendered: the 32 x 32 input becomes padding, pooling has no weights, the third
layer is fully connected to the second, the output is softmax regression.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

PARAMETERS = 61_706


def build(seed: int) -> Any:
    """Return the model: (B, 28, 28, 1) from 0 to 1 -> (B, 10) logits."""

    def first_weights(layer: int) -> Any:
        return keras.initializers.GlorotUniform(seed=seed * 100 + layer)

    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            # -> (B, 28, 28, 6)
            layers.Conv2D(
                6, 5, padding="same", activation="tanh", kernel_initializer=first_weights(1)
            ),
            layers.AveragePooling2D(2),  # -> (B, 14, 14, 6)
            layers.Conv2D(16, 5, activation="tanh", kernel_initializer=first_weights(2)),
            layers.AveragePooling2D(2),  # (B, 10, 10, 16) -> (B, 5, 5, 16)
            layers.Flatten(),  # -> (B, 400)
            layers.Dense(120, activation="tanh", kernel_initializer=first_weights(3)),
            layers.Dense(84, activation="tanh", kernel_initializer=first_weights(4)),
            layers.Dense(10, kernel_initializer=first_weights(5)),
        ],
        name="lenet5",
    )
