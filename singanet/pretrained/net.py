"""The net that was made of others' files, and goes back into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singanet.net import FeedForwardNet
from singanet.pretrained.gguf_form import GgufForm
from singanet.pretrained.places import FileArray

if TYPE_CHECKING:
    from singanet.types import Array


@dataclass
class Origin:
    """Where a net came from: what `save` gives back beside the parameters.

    ``config`` is what config.json says, ``arrays`` are those of the files by name, each of the
    parameters of the net, ``kept`` those that no parameter is. ``files`` stood beside them, by
    their names within the folder; ``tokenizer`` is what a GGUF file says of its texts, ``form`` how
    the whole file is.
    """

    config: dict[str, Any]
    arrays: Mapping[str, FileArray]
    kept: Mapping[str, Array]
    files: Mapping[str, Path]
    tokenizer: Mapping[str, Any]
    form: GgufForm | None = None


class PretrainedNet(FeedForwardNet):
    """A net that `pretrained.load` or `build` made; `pretrained.save` writes it back.

    ``most_steps`` is how many steps its sequences may have, as the config says. Else it is as every
    `FeedForwardNet`.
    """

    origin: Origin

    @property
    def config(self) -> dict[str, Any]:
        """What the model's config.json says; what is changed in it is saved so."""
        return self.origin.config
