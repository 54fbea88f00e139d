"""A net drawn by a config, without values; and `build`, which draws these at random."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from singanet.base.budget import own_errors
from singanet.errors import ArgumentError, ConfigError, SingaNetError
from singanet.pretrained.config import Config
from singanet.pretrained.drawing import INPUTS, ModelDrawing
from singanet.pretrained.family import Family
from singanet.pretrained.net import Origin, PretrainedNet
from singanet.pretrained.places import stored_arrays
from singanet.pretrained.sentences import SentencePooling
from singanet.pretrained.table import family_of

_MOST_BLOCKS = 1000


@dataclass(frozen=True)
class MadeNet:
    """A net, how it was drawn, and the names of the arrays in the files by those it knows."""

    net: PretrainedNet
    family: Family
    drawing: ModelDrawing
    names: Mapping[str, str]


def make(
    values: Mapping[str, Any],
    where: str,
    names: Iterable[str] | None = None,
    inputs: Sequence[str] | None = None,
    sentence: SentencePooling | None = None,
    seed: int | None = None,
) -> MadeNet:
    """The net of the config ``values``, for files that have arrays of these ``names``.

    Errors: `ConfigError`, also for sizes that no layer can have; `ArgumentError` for ``inputs``
    that the family has not.
    """
    family = family_of(values, where)
    found = {} if names is None else family.canonical(names)
    config = Config(values, where, _MOST_BLOCKS if names is None else len(found))
    architecture = family.architecture(values, where)
    drawing = ModelDrawing(
        config, None if names is None else found, architecture, architecture in family.bare, inputs
    )
    drawing.sentence = sentence if drawing.is_bare else None
    try:
        with own_errors(partial(_refused, where), "numbers that can be computed with"):
            outputs = family.draw(drawing)
        config.end()
        net = PretrainedNet(
            inputs=drawing.inputs,
            outputs=outputs,
            loss=drawing.loss,
            metric=drawing.metric,
            seed=seed,
        )
    except (ConfigError, ArgumentError) as error:
        if isinstance(error, ConfigError) or error.where == INPUTS:
            raise
        raise _impossible(error, where) from None
    except SingaNetError as error:
        raise _impossible(error, where) from None
    net.most_steps = drawing.most_steps
    return MadeNet(net, family, drawing, found)


def _refused(where: str, expected: str, received: str) -> ConfigError:
    advice = "the config is of no model that can be built"
    return ConfigError(where, expected=expected, received=received, advice=advice)


def _impossible(error: SingaNetError, where: str) -> ConfigError:
    return _refused(f"{where}, {error.where}", error.expected, error.received)


def build(
    config: Mapping[str, Any], *, inputs: Sequence[str] | None = None, seed: int | None = None
) -> PretrainedNet:
    """A net of the architecture that ``config`` describes, its parameters drawn from ``seed``.

    ``config`` is what a config.json holds, with ``model_type`` and ``architectures``. The net is
    saved by `save` as one that was loaded. Errors: those of `load` for a config.
    """
    made = make(config, "pretrained.build, config", inputs=inputs, seed=seed)
    made.net.origin = Origin(dict(config), stored_arrays(made.drawing.places.values()), {}, {}, {})
    return made.net
