"""Predictors: what of a net predicts, as an object and in a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.files import path_of
from singanet.checkpoint.formats import write_state
from singanet.engine.net import Net
from singanet.errors import ArgumentError, ConfigError
from singanet.program.prediction.compiled import CompiledNet, ConstantNet
from singanet.program.prediction.constant import foldable
from singanet.saving.nets import net_to_config
from singanet.saving.objects import intake_to_config, kind_of, refusing, wrong
from singanet.saving.parameters import distinct
from singanet.saving.whole_model import (
    CONTAINER,
    PREDICTOR,
    check_path,
    described,
    encoded,
    fill,
    opened,
)
from singanet.training.batches import by_name, input_names
from singanet.training.evaluation import joined_batches
from singanet.types import Array

if TYPE_CHECKING:
    from typing_extensions import Self

_CONSTANT = "constant/"
_FILE = "predictor.singanet"


class Predictor(CompiledNet):
    """The object that `FeedForwardNet.predictor` makes: predictions with constant parameters.

    ``predictor(x)`` gives what ``net.predict(x)`` gave when it was made, but for rounding. It may
    be called from several threads. ``inputs`` and ``outputs`` tell what goes in and comes out,
    ``nbytes`` how large the constants are, ``notes`` what runs as Python.
    """

    def __init__(self, net: ConstantNet, names: Sequence[str], about: Mapping[str, Any]) -> None:
        super().__init__(net)
        self._names = list(names)
        self._about = about

    @classmethod
    def of(cls, net: Net) -> Self:
        """See `FeedForwardNet.predictor`."""
        expect_own_calls(net, "net.predictor")
        _expect_no_states(net)
        constant = ConstantNet(net, net.device)
        about: dict[str, Any] = {
            "dtype": str(net.dtype),
            "seed": int(net.seed),
            "generator": net.rng.bit_generator.state,
            "norms": constant.norms,
        }
        try:
            about |= intake_to_config(net.intake)
            about["net"] = net_to_config(net, metric=False)
        except ConfigError as error:
            # It predicts, but no file could tell what to build.
            about["error"] = error
        return cls(constant, input_names(net), about)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The predictor that `save` wrote to ``path``.

        On the same machine it predicts the same bits. Classes come from singanet's own and from
        those given to `singanet.register`; nothing in the file is run, and no array is made
        before the file is seen to hold it. Errors: those of `singanet.load_model`.
        """
        with opened(path, PREDICTOR) as (reader, about), described(Net, about) as net:
            norms = _norms(about.get("norms"), foldable(net.planned()))
            constant = ConstantNet(net, net.device, norms)
            fill(constant.constants.named(), reader, _CONSTANT)
            return cls(constant, input_names(net), about)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write net and constants to one file, which goes to any machine; whole or not at all.

        Errors: `ConfigError` for a class that is neither singanet's nor registered,
        `ArgumentError` for a suffix of another format, `FileAccessError`.
        """
        path = path_of(path)
        check_path(path)
        if "error" in self._about:
            raise self._about["error"]
        state = {PREDICTOR.text: encoded(PREDICTOR, self._about)}
        with self.constants() as net:
            params = distinct(net.params())
            write_state(path, state | {_CONSTANT + p.name: p.value for p in params}, CONTAINER)

    def __reduce__(self) -> tuple[Any, ...]:
        """By what `save` writes, so that copies and other processes predict the same bits.

        Errors: `ConfigError` for a class that is neither singanet's nor registered.
        """
        with TemporaryDirectory() as folder:
            path = Path(folder, _FILE)
            self.save(path)
            return _unpickled, (type(self), path.read_bytes())

    @contextmanager
    def constants(self) -> Iterator[ConstantNet]:
        """What it predicts with, whose constants all have their arrays inside."""
        with self._net.constants.lock:
            yield self._net
            self._net.constants.let_go()

    def __call__(self, x: Any, batch_size: int | None = None, *, out: Any = None) -> Array:
        """The output for ``x``, through the link of the net's loss: softmax, sigmoid or none.

        With several outputs it is a dict by their names.
        ``x`` is the array of the single input, batch axis first, or a dict by name; with
        ``batch_size`` also a loader or another iterable of batches ``x`` or ``(x, ...)``. What
        comes back is the caller's own: ``out``, where that is given, an array of the output's
        shape and type, or a dict of such. A recorded prediction allocates nothing then. Errors:
        `ShapeError`, `UnknownNameError` and `ArgumentError` for what is no input of the net, or
        no ``out`` for it; ``out`` is as it was then.
        """
        if batch_size is None:
            return super().__call__(x, out=out)
        if out is not None:
            raise ArgumentError(
                "predictor",
                expected="out= for one batch, or batch_size=",
                received="both",
                advice="call it for each part: predictor(x[a:b], out=out[a:b])",
            )
        return joined_batches(super().__call__, x, batch_size, self._given, "predictor", np)

    def _given(self, where: str, x: Any) -> Any:
        return by_name(where, self._taken(where, x), self._names, all_of_them=True)


def _unpickled(kind: type[Predictor], raw: bytes) -> Predictor:
    with TemporaryDirectory() as folder:
        path = Path(folder, _FILE)
        path.write_bytes(raw)
        return kind.load(path)


def load_predictor(path: str | os.PathLike[str]) -> Predictor:
    """See `Predictor.load`."""
    return Predictor.load(path)


def expect_own_calls(net: Net, where: str) -> None:
    """Refuse a net that does something else than its layers one after the other."""
    for name in ("forward", "predict"):
        found = getattr(net, name, None)
        if found is not None and not str(found.__module__).startswith("singanet."):
            raise ArgumentError(
                where,
                expected=f"a net whose {name} is singanet's: what is made has the layers alone",
                received=f"a {type(net).__name__} with one of its own",
                advice="put what it does into a layer or into the link of a loss",
            )


def _expect_no_states(net: Net) -> None:
    """Refuse stateful layers: the parameters of a predictor are constant."""
    for layer in net.layers:
        if getattr(layer, "stateful", None):
            raise ArgumentError(
                "net.predictor",
                expected="layers whose predictions leave them as they are",
                received=f"the stateful layer {layer.name!r}",
                advice="hand its states on as inputs and outputs: leave stateful out, return_state",
            )


def _norms(given: Any, foldable: Mapping[str, str]) -> dict[str, str]:
    with refusing("the predictor"):
        if not isinstance(given, Mapping) or not given.items() <= foldable.items():
            expected = "normalisations after convolutions under 'norms'"
            raise wrong("the predictor", expected, kind_of(given))
        return dict(given)
