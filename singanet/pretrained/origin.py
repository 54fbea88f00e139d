"""Where a net's arrays stand in a model's files: of the net that was loaded, or of one like it."""

from __future__ import annotations

import os

from singanet.engine.net import Net
from singanet.errors import ArgumentError
from singanet.pretrained.hub import folder_of
from singanet.pretrained.making import MadeNet, make
from singanet.pretrained.net import Origin
from singanet.pretrained.places import stored_arrays
from singanet.pretrained.source import ModelSource, open_source


def origin_in(source: ModelSource, made: MadeNet) -> Origin:
    """What a net that was ``made`` for the files of ``source`` gives back to such files."""
    names = made.names
    arrays = stored_arrays(made.drawing.places.values())
    kept = {
        there: source.reader.read(there)
        for name, there in names.items()
        if made.drawing.keeps(name) and name not in arrays
    }
    there = {names.get(name, name): array for name, array in arrays.items()}
    return Origin(source.config, there, kept, source.files, source.tokenizer, source.form)


def origin_of(net: Net, where: str, advice: str = "load the net with pretrained.load") -> Origin:
    """The origin of ``net``. Errors: `ArgumentError` if `load` has not made it."""
    origin = getattr(net, "origin", None)
    if not isinstance(origin, Origin):
        raise ArgumentError(
            where,
            expected="a net that pretrained.load made",
            received=f"a {type(net).__name__}",
            advice=advice,
        )
    return origin


def origin_like(net: Net, like: str | os.PathLike[str]) -> Origin:
    """The same for ``net``, whose parameters are those of the model in the folder ``like``.

    Errors: `ArgumentError` for a net with other parameters; those of `load`.
    """
    params = {param.name: param for param in net.params()}
    with open_source(folder_of(like)) as source:
        made = make(source.config, source.where, source.reader.entries, sentence=source.sentence)
        places = made.drawing.places
        shapes = {name: param.shape for name, (param, _) in places.items()}
        if {name: param.shape for name, param in params.items()} != shapes:
            first = next((name for name in shapes if name not in params), "other shapes")
            raise ArgumentError(
                "pretrained.save, net",
                expected=f"the {len(shapes)} parameters that load makes of {str(like)!r}",
                received=f"{len(params)} that are not the same: {first!r}",
                advice="write other nets with net.save or net.save_model",
            )
        places.update({name: (params[name], place) for name, (_, place) in places.items()})
        return origin_in(source, made)
