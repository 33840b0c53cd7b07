"""Models by name. Each module has ``build(seed) -> keras.Model`` from images to ten logits."""

from __future__ import annotations

from importlib import import_module
from typing import Any

MODULES = {"lenet5": "lenet5", "mlp": "mlp"}


def build(name: str, seed: int) -> Any:
    """Return a model whose first weights follow from the seed alone (a Keras model: untyped)."""
    return import_module(f".{MODULES[name]}", __package__).build(seed)
