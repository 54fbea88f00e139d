"""How a legacy Keras file shows itself."""

from __future__ import annotations

from typing import Any


def is_legacy(file: Any) -> bool:
    """Whether ``file`` is a legacy one: whole model or weights alone."""
    attributes = weights_group(file).attrs
    return "layer_names" in attributes or "layer_names0" in attributes


def weights_group(file: Any) -> Any:
    """Where the layers' groups are: below ``model_weights`` in a whole model, else at the root."""
    import h5py

    found = file.get("model_weights", getclass=True, getlink=False)
    return file["model_weights"] if found is h5py.Group else file
