"""The families of models, by the ``model_type`` of a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from singanet.errors import ConfigError, brief, did_you_mean, one_of
from singanet.pretrained import (
    beit,
    deberta,
    encoder_decoders,
    encoders,
    expert_families,
    gpt_families,
    image_text,
    llama_families,
    modernbert,
    swin,
    vision,
)
from singanet.pretrained.drawing import Family

FAMILIES: Mapping[str, Family] = {
    **llama_families.FAMILIES,
    **gpt_families.FAMILIES,
    **expert_families.FAMILIES,
    **encoders.FAMILIES,
    **modernbert.FAMILIES,
    **deberta.FAMILIES,
    **encoder_decoders.FAMILIES,
    **vision.FAMILIES,
    **image_text.FAMILIES,
    **swin.FAMILIES,
    **beit.FAMILIES,
}


def family_of(values: Mapping[str, Any], where: str) -> Family:
    """Return the family of a config. Errors: `ConfigError` if it is unknown."""
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ConfigError(
            f"{where}, model_type",
            expected=one_of(FAMILIES, 40),
            received=brief(kind)[:80],
            advice=did_you_mean(str(kind), FAMILIES, "build such a net by layers"),
        )
    return FAMILIES[kind]
