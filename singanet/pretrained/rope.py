"""Rotary positions as configs describe them, of transformers 4 and of 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from singanet.errors import SingaNetError
from singanet.layers import RotaryEmbedding
from singanet.pretrained.config import Config

_NEED_LENGTH = ("dynamic", "yarn", "longrope")
"""Types whose original length is the config's own where nothing else is said."""


def rotary(
    c: Config, longest: int, theta: float = 10000.0, kind: str | None = None
) -> RotaryEmbedding:
    """What the config says of positions, in models of ``longest`` steps.

    transformers 5 has ``rope_parameters``, of layers of several types a dict for each ``kind``;
    before there were ``rope_theta``, ``rope_scaling`` and ``partial_rotary_factor``.
    Errors: `ConfigError`.
    """
    section = c.section("rope_parameters")
    if section is not None and kind is not None and kind in section.values:
        section = section.section(kind)
    if section is None:
        section = c.section("rope_scaling") or Config({}, f"{c.where}, rope_scaling")
    theta = section.number("rope_theta", c.number("rope_theta", theta))
    fraction = section.number(
        "partial_rotary_factor", c.number("partial_rotary_factor", 1.0, least=0.0)
    )
    settings: dict[str, Any] = {} if fraction == 1.0 else {"fraction": fraction}
    if scaling := _scaling(c, section, longest):
        settings["scaling"] = scaling
    try:
        return RotaryEmbedding(theta, **settings)
    except SingaNetError as error:
        raise c.refused("rope_parameters", error.expected, error.received) from None


def _scaling(c: Config, section: Config, longest: int) -> Mapping[str, Any] | None:
    """The scaling as `RotaryEmbedding` takes it; None for plain positions."""
    skipped = ("rope_theta", "partial_rotary_factor", "type", "rope_type", "finetuned")
    kind = section.take("rope_type", section.take("type", "default"))
    if kind == "default":
        section.skip("finetuned", "factor", "original_max_position_embeddings")
        section.end()
        return None
    kind = "longrope" if kind == "su" else kind
    given = {key: value for key, value in section.values.items() if key not in skipped}
    given["rope_type"] = kind
    original = c.take("original_max_position_embeddings")
    if kind in _NEED_LENGTH:
        given.setdefault("original_max_position_embeddings", original or longest)
    if kind == "longrope" and given.get("factor") is None:
        length = given["original_max_position_embeddings"]
        given["factor"] = longest / length if isinstance(length, int) and length > 0 else None
    return {key: value for key, value in given.items() if value is not None}
