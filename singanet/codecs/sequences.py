"""Tables of vectors, and which steps are there."""

from __future__ import annotations

from singanet import layers
from singanet.codecs.arrays import StoredArray, stored
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.dense import QUANTIZED

SEQUENCES = (
    LayerCodec(
        layers.Embedding,
        stored(StoredArray("weight", "embeddings", "weight")),
        {
            "Embedding": KerasClass(
                {"input_dim": ("vocabulary_size", None), "output_dim": ("num_output", None)},
                {"W_specs": ("embeddings", {(0,): 0, (1,): 1})},
                QUANTIZED,
                lambda d: {"mask_index": 0 if d.config.get("mask_zero") else None},
                masked=True,
            )
        },
    ),
    LayerCodec(
        layers.Masking,
        keras={"Masking": KerasClass({"mask_value": ("value", float)}, masked=True)},
    ),
)
