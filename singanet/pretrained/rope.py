"""Rotary positions as configs describe them, of transformers 4 and of 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from singanet.errors import SingaNetError
from singanet.layers import RotaryEmbedding
from singanet.pretrained.config import Config

_NEED_LENGTH = ("dynamic", "yarn", "longrope")
"""Types whose original length is the config's own where nothing else is said."""


def rotary(c: Config, longest: int, thetas: Mapping[str, float]) -> dict[str, RotaryEmbedding]:
    """What the config says of positions in models of ``longest`` steps, by the type of attention.

    ``thetas`` are the usual ones of each type. transformers 5 has ``rope_parameters``, where there
    are several types a dict for each; before there were ``rope_theta``, ``rope_scaling``, which the
    first of the types has alone, and ``partial_rotary_factor``. Errors: `ConfigError`.
    """
    fraction = c.number("partial_rotary_factor", 1.0)
    first, *others = thetas
    theta = c.number("rope_theta", thetas[first])
    newer, older = c.section("rope_parameters"), c.section("rope_scaling")
    if newer is not None and set(newer.values) & set(thetas):
        sections = {kind: newer.section(kind) for kind in thetas}
        newer.end()
    else:
        sections = {first: newer or older, **dict.fromkeys(others)}
    found = {}
    for kind, section in sections.items():
        usual = theta if kind == first else thetas[kind]
        section = section or Config({}, c.where)
        found[kind] = _one(c, section, longest, usual, fraction)
    return found


def _one(
    c: Config, section: Config, longest: int, theta: float, fraction: float
) -> RotaryEmbedding:
    theta = section.number("rope_theta", theta)
    fraction = section.number("partial_rotary_factor", fraction)
    try:
        return RotaryEmbedding(theta, fraction=fraction, scaling=_scaling(c, section, longest))
    except SingaNetError as error:
        raise section.refused("rope_type", error.expected, error.received) from None


def _scaling(c: Config, section: Config, longest: int) -> Mapping[str, Any] | None:
    """The scaling as `RotaryEmbedding` takes it; None for plain positions."""
    kind = section.take("rope_type", section.take("type", "default"))
    original = c.take("original_max_position_embeddings")
    section.skip("finetuned")
    if kind == "default":
        section.skip("original_max_position_embeddings")
        section.end()
        return None
    kind = "longrope" if kind == "su" else kind
    apart = ("rope_theta", "partial_rotary_factor", "type", "rope_type", "finetuned")
    given = {key: value for key, value in section.values.items() if key not in apart}
    given["rope_type"] = kind
    if kind in _NEED_LENGTH and given.get("original_max_position_embeddings") is None:
        given["original_max_position_embeddings"] = original or longest
    if kind == "longrope" and given.get("factor") is None:
        length = given["original_max_position_embeddings"]
        given["factor"] = longest / length if isinstance(length, int) and length > 0 else None
    return {key: value for key, value in given.items() if value is not None}
