"""Embeddings of sentences: how sentence-transformers' folders make one vector of the steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from singanet.errors import ConfigError
from singanet.layers import Index, L2Norm, Reduce
from singanet.layers.symbol import Symbol
from singanet.pretrained.config import Config

NAME = "sentence_embedding"
_MODES = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}
_OTHER_MODES = (
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
    "pooling_mode_lasttoken",
)


@dataclass(frozen=True)
class SentencePooling:
    """The "first" step, or the "mean" or "max" of those that are there; ``unit``: of length 1."""

    mode: str
    unit: bool

    def draw(self, x: Symbol, mask: Symbol | None) -> Symbol:
        """``sentence_embedding`` of the last hidden states ``x``."""
        name = "pooling" if self.unit else NAME
        y: Symbol
        if self.mode == "first":
            y = Index(name, [0])(x)
        else:
            y = Reduce(name, self.mode, axes=1)(*([x] if mask is None else [x, mask]))
        return L2Norm(NAME, epsilon=1e-24)(y) if self.unit else y


def pooling_of(modules: Any, where: str, settings: Callable[[str], Any]) -> SentencePooling:
    """What ``modules.json`` says is done with the steps; ``settings`` reads a module's own file.

    Errors: `ConfigError` for other modules than pooling and normalising.
    """
    kinds, folders = [], []
    for module in modules if isinstance(modules, list) else [None]:
        entry = module if isinstance(module, dict) else {}
        kinds.append(str(entry.get("type")).rpartition(".")[2])
        folders.append(str(entry.get("path")))
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ConfigError(
            where,
            expected="the modules Transformer, Pooling and perhaps Normalize",
            received=", ".join(kinds)[:80],
            advice="remove modules.json for the last hidden states alone",
        )
    pooling = Config(settings(folders[1]), f"{where}, Pooling")
    return SentencePooling(_mode(pooling), unit=len(kinds) == 3)


def _mode(c: Config) -> str:
    c.only(**dict.fromkeys(_OTHER_MODES, False))
    c.skip("word_embedding_dimension", "include_prompt")
    chosen = [mode for key, mode in _MODES.items() if c.flag(key, False)]
    named = c.take("pooling_mode")
    c.end()
    chosen += [] if named is None else [{"cls": "first"}.get(str(named), str(named))]
    if len(chosen) != 1 or chosen[0] not in _MODES.values():
        raise c.refused("pooling_mode", "one of the first step, the mean and the largest", chosen)
    return chosen[0]
