"""Predictors: nets with constant parameters that only predict, as objects and files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.files import path_of
from singanet.base.tracebacks import entry_point, shorten
from singanet.engine.feeds import is_mapped
from singanet.engine.net import Net
from singanet.errors import ArgumentError, ConfigError
from singanet.program.prediction.compiled import CompiledNet, ConstantNet
from singanet.program.prediction.constant import foldable
from singanet.saving.nets import net_to_config
from singanet.saving.objects import intake_to_config, kind_of, refusing, wrong
from singanet.training.batches import USUAL_BATCH, by_name, input_names
from singanet.types import Array

if TYPE_CHECKING:
    from typing_extensions import Self

_CONSTANT = "constant/"
_FILE = "predictor.singanet"


class Predictor(CompiledNet):
    """A net with constant parameters that only predicts; `FeedForwardNet.predictor` makes it.

    ``predictor(x)`` returns ``net.predict(x)`` at the time of its creation, up to rounding. Several
    threads may call it. ``inputs`` and ``outputs`` describe its arrays, ``nbytes`` is the size of
    the constants, ``notes`` lists the parts that run as Python.

    Args:
        net: The net with its constants, which `FeedForwardNet.predictor` or `load` makes.
        names: The names of its inputs, in order.
        about: The description that `save` writes.

    Examples:
        >>> Dense = singanet.layers.Dense
        >>> net = singanet.FeedForwardNet([Dense("out", 2, input_shape=(3,))], seed=0)
        >>> predictor = net.predictor()
        >>> np.allclose(predictor(np.eye(3)), net.predict(np.eye(3)), atol=1e-6)
        True
    """

    def __init__(self, net: ConstantNet, names: Sequence[str], about: Mapping[str, Any]) -> None:
        super().__init__(net)
        self._names = list(names)
        self._about = about

    @classmethod
    def of(cls, net: Net) -> Self:
        """Return the predictor of ``net``; see `FeedForwardNet.predictor`."""
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
            # The predictor works but cannot be saved.
            about["error"] = error
        return cls(constant, input_names(net), about)

    @classmethod
    @entry_point
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load the predictor that `save` wrote to ``path``.

        On the same machine it predicts the same bits. Classes are singanet's own and those given to
        `singanet.register`. Nothing in the file is run, and an array is allocated only after a
        check that the file contains it. Errors: as `singanet.load_model`.
        """
        from singanet.saving.whole_model import PREDICTOR, described, fill, opened

        with opened(path, PREDICTOR) as (reader, about), described(Net, about) as net:
            norms = _norms(about.get("norms"), foldable(net.planned()))
            constant = ConstantNet(net, net.device, norms)
            fill(constant.constants.named(), reader, _CONSTANT)
            return cls(constant, input_names(net), about)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write net and constants atomically to one portable file at ``path``.

        Errors: `ConfigError` if a class is neither singanet's nor registered, `ArgumentError` for a
        suffix of another format, `FileAccessError`.
        """
        from singanet.checkpoint.formats import write_state
        from singanet.saving.parameters import distinct
        from singanet.saving.whole_model import CONTAINER, PREDICTOR, check_path, encoded

        path = path_of(path)
        check_path(path)
        if "error" in self._about:
            raise self._about["error"]
        state = {PREDICTOR.text: encoded(PREDICTOR, self._about)}
        with self.constants() as net:
            params = distinct(net.params())
            write_state(path, state | {_CONSTANT + p.name: p.value for p in params}, CONTAINER)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the file that `save` writes, so that copies predict the same bits.

        Errors: `ConfigError` if a class is neither singanet's nor registered.
        """
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            path = Path(folder, _FILE)
            self.save(path)
            return _unpickled, (type(self), path.read_bytes())

    @contextmanager
    def constants(self) -> Iterator[ConstantNet]:
        """Yield the net with all its constants loaded."""
        with self._net.constants.lock:
            yield self._net
            self._net.constants.let_go()

    def __call__(self, x: Any, batch_size: int | None = None, *, out: Any = None) -> Array:
        """Return the output for ``x``, through the link of the net's loss.

        Several outputs are a dict by name. The caller owns the result. Errors: `ShapeError`,
        `UnknownNameError` and `ArgumentError` if ``x`` or ``out`` does not fit the net; ``out`` is
        then unchanged.

        Args:
            x: The array of the single input, batch axis first, or a dict by name. With
                ``batch_size`` also a loader or another iterable of batches ``x`` or ``(x, ...)``.
            batch_size: Positive int, the samples that are computed at a time; None for all at once,
                and for 32 of a `numpy.memmap`.
            out: Array of the output's shape and dtype, or a dict of these, that receives the
                result; a recorded prediction then allocates nothing.
        """
        try:
            if batch_size is None and out is None and type(x) is not np.ndarray and is_mapped(x):
                batch_size = USUAL_BATCH
            if batch_size is None:
                return super().__call__(x, out=out)
            if out is not None:
                raise ArgumentError(
                    "predictor",
                    expected="out= for one batch, or batch_size=",
                    received="both",
                    advice="call it for each part: predictor(x[a:b], out=out[a:b])",
                )
            from singanet.training.evaluation import joined_batches

            return joined_batches(super().__call__, x, batch_size, self._by_input, "predictor", np)
        except BaseException as error:
            shorten(error)
            raise

    def _by_input(self, where: str, x: Any) -> Any:
        return by_name(where, self._taken(where, x), self._names, all_of_them=True)


def _unpickled(kind: type[Predictor], raw: bytes) -> Predictor:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder, _FILE)
        path.write_bytes(raw)
        return kind.load(path)


@entry_point
def load_predictor(path: str | os.PathLike[str]) -> Predictor:
    """Load the predictor that `Predictor.save` wrote.

    On the same machine it predicts the same bits. Nothing in the file is run. Errors: as
    `load_model`.

    Args:
        path: Path of the file.
    """
    return Predictor.load(path)


def expect_own_calls(net: Net, where: str) -> None:
    """Refuse a net that overrides `forward` or `predict`."""
    for name in ("forward", "predict"):
        found = getattr(net, name, None)
        if found is not None and not str(found.__module__).startswith("singanet."):
            raise ArgumentError(
                where,
                expected=f"a net whose {name} is singanet's, since the result has the layers alone",
                received=f"a {type(net).__name__} with its own {name}",
                advice="move its code into a layer or into the link of a loss",
            )


def _expect_no_states(net: Net) -> None:
    """Refuse stateful layers: the parameters of a predictor are constant."""
    for layer in net.layers:
        if getattr(layer, "stateful", None):
            raise ArgumentError(
                "net.predictor",
                expected="layers without state between predictions",
                received=f"the stateful layer {layer.name!r}",
                advice="pass its states as inputs and outputs: omit stateful, set return_state",
            )


def _norms(given: Any, foldable: Mapping[str, str]) -> dict[str, str]:
    with refusing("the predictor"):
        if not isinstance(given, Mapping) or not given.items() <= foldable.items():
            expected = "normalisations after convolutions under 'norms'"
            raise wrong("the predictor", expected, kind_of(given))
        return dict(given)
