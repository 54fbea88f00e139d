"""A restricted Boltzmann machine, trained by contrastive divergence."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from singanet.base.arguments import checked_count
from singanet.device import cpu
from singanet.errors import ArgumentError, ShapeError
from singanet.graph.nodes import Ports
from singanet.initializer import Constant, Gaussian
from singanet.loss import SquaredError
from singanet.metric import Metric
from singanet.ops import Ops, ops_for
from singanet.optimizer import Optimizer, Wrapper
from singanet.params.grads import LayerGradients
from singanet.params.param import Param, make_param
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from singanet.checkpoint import LoadReport
    from singanet.training.display import History


class _Whole(NamedTuple):
    """The machine as the one node of a net."""

    name: str
    sources: tuple[()] = ()
    consumers: int = 0


class RBM:
    """Binary visible and hidden units, joined by ``weight`` (visible, hidden) and two biases.

    p(h = 1 | v) = σ(v W + b_h), p(v = 1 | h) = σ(h Wᵀ + b_v). Samples lie in [0, 1], of any
    shape. It has no backward pass, so it is no net, but it is trained and tested like one, by
    `fit` too; where a net has labels it takes them and does nothing with them. Hinton, 2002.
    """

    layers = ()

    def __init__(self, input_shape: Shape, hidden: int = 256, seed: int | None = None) -> None:
        self.input_shape = tuple(input_shape)
        self.hidden = checked_count("RBM", "argument hidden", hidden, 1)
        self.loss = SquaredError()
        self.metric: Metric | None = None
        self.compiled: object | None = None
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        self.device = cpu()
        self.seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        self.rng = np.random.default_rng(self.seed)
        visible = prod(self.input_shape)
        shapes = {"weight": (visible, hidden), "visible": (visible,), "hidden": (hidden,)}
        self._params: dict[str, Param] = {}
        for suffix, shape in shapes.items():
            start = Gaussian(0.0, 0.1) if suffix == "weight" else Constant(0.0)
            self._params[suffix] = make_param("rbm", suffix, shape, None, start, (0, 0))
            self._params[suffix].seed = self.seed

    def nodes(self) -> list[_Whole]:
        """Itself, input and output at once."""
        return [_Whole("rbm")]

    def ports(self) -> Ports:
        """Itself."""
        return Ports(["rbm"], [("rbm", 0)])

    def params(self) -> list[Param]:
        """The weight, the bias of the visible units and that of the hidden ones."""
        return list(self._params.values())

    def param_names(self) -> list[str]:
        """Their names."""
        return [param.name for param in self.params()]

    def param_values(self) -> list[Array]:
        """Their live arrays."""
        return [param.value for param in self.params()]

    def encode(self, x: Any) -> Array:
        """p(h = 1 | x), (N, hidden)."""
        ops, v = self._visible(x)
        return self._up(ops, v)

    def reconstruct(self, x: Any) -> Array:
        """Samples (N, *input_shape) as they come back from their hidden probabilities."""
        ops, v = self._visible(x)
        return self._down(ops, self._up(ops, v)).reshape(-1, *self.input_shape)

    def forward(self, flag: bool, x: Any) -> Array:
        """`reconstruct`, whatever ``flag``."""
        return self.reconstruct(x)

    def gradients(self, ys: Any, xs: Any, feed: Any, *_: Any, **__: Any) -> NoReturn:
        """Refused: no output's gradient is what contrastive divergence follows."""
        raise ArgumentError(
            "RBM.gradients",
            expected="a net of layers, whose backward gives gradients",
            received="a machine that is trained by contrastive divergence",
            advice="step(x, y, optimizer, on_layer) hands out what it follows instead",
        )

    def step(
        self,
        x: Any,
        y: Any,
        optimizer: Optimizer | Wrapper,
        on_layer: Callable[[LayerGradients], None] | None = None,
        sample_weight: None = None,
        measure: Callable[[Any, Any], float | None] | None = None,
    ) -> tuple[float, None]:
        """One step of contrastive divergence (CD-1) on a batch; ``(error, None)``.

        The gradients are means over the batch of SINGA's: v'ᵀh' − vᵀh, v' − v and h' − h with the
        probabilities h of v, v' of a sample of h, and h' of v'. The error is ½ (v − v')² as
        `SquaredError` has it; ``measure`` sees v', as if it were the output. Errors: weights of
        samples.
        """
        if sample_weight is not None:
            raise ArgumentError(
                "RBM, sample_weight",
                expected="none",
                received="weights",
                advice="repeat the samples that shall count for more",
            )
        ops, v = self._visible(x)
        h = self._up(ops, v)
        sample = ops.bernoulli(self.rng, h).astype(v.dtype)
        again = self._down(ops, sample)
        h_again = self._up(ops, again)
        scale = 1.0 / max(len(v), 1)
        weight = ops.subtract(ops.matmul(again.T, h_again), ops.matmul(v.T, h))
        grads = [ops.multiply(weight, scale, out=weight)]
        for after, before in ((again, v), (h_again, h)):
            grads.append(ops.multiply(ops.sum(ops.subtract(after, before), axis=0), scale))
        item = LayerGradients(self.param_names(), self.param_values(), list(grads), "rbm")
        if on_layer is not None:
            on_layer(item)
        optimizer.update(*item)
        if measure is not None:
            measure(again.reshape(-1, *self.input_shape), y)
        return _error(ops, v, again), None

    def compile(self, optimizer: Optimizer | Wrapper, **options: Any) -> None:
        """As `FeedForwardNet.compile`."""
        from singanet.training.compiled import compile_net

        compile_net(self, optimizer, **options)

    def fit(self, x: Any, y: Any = None, **options: Any) -> History:
        """As `FeedForwardNet.fit`."""
        from singanet.training.fit import fit
        from singanet.training.options import FitOptions

        return fit(self, x, y, FitOptions(**options))

    def evaluate(
        self, x: Any, y: Any = None, batch_size: int | None = None
    ) -> tuple[float | None, float | None]:
        """``(error, None)`` of `reconstruct`, without any draw; of batches as a net's."""
        from singanet.training.evaluation import evaluate

        if batch_size is not None or not hasattr(x, "shape"):
            return evaluate(self, x, y, batch_size)
        ops, v = self._visible(x)
        return _error(ops, v, self._down(ops, self._up(ops, v))), None

    def predict(self, x: Any, batch_size: int | None = 32) -> Array:
        """As `FeedForwardNet.predict`: what comes back of ``x``."""
        from singanet.training.evaluation import predict

        return predict(self, x, batch_size)

    def save(self, f: str | PathLike[str], format: str | None = None) -> None:
        """As `FeedForwardNet.save`."""
        from singanet.saving.nets import save_parameters

        save_parameters(self, f, format)

    def load(self, f: str | PathLike[str], format: str | None = None, **options: Any) -> LoadReport:
        """As `FeedForwardNet.load`."""
        from singanet.saving.nets import load_parameters

        return load_parameters(self, f, format, **options)

    def summary(self) -> str:
        """The parameters with their shapes and the total."""
        lines = [f"{param.name}  {param.shape}" for param in self.params()]
        total = sum(prod(param.shape) for param in self.params())
        return "\n".join([*lines, f"{total:,} parameters, {total:,} trained, 0 not"])

    def _visible(self, x: Any) -> tuple[Ops, Array]:
        if tuple(getattr(x, "shape", ())[1:]) != self.input_shape:
            raise ShapeError(
                "RBM, input",
                expected=f"an array of shape (batch, {', '.join(map(str, self.input_shape))})",
                received=f"shape {tuple(getattr(x, 'shape', ()))}",
                advice="the batch axis comes first",
            )
        weight = self._params["weight"].value
        return ops_for(weight), x.reshape(len(x), prod(self.input_shape)).astype(weight.dtype)

    def _up(self, ops: Ops, v: Array) -> Array:
        weight, bias = self._params["weight"].value, self._params["hidden"].value
        return ops.sigmoid(ops.affine(v, weight, bias))

    def _down(self, ops: Ops, h: Array) -> Array:
        weight, bias = self._params["weight"].value, self._params["visible"].value
        return ops.sigmoid(ops.affine(h, weight.T, bias))


def build(
    input_shape: Shape, num_classes: int = 1, seed: int | None = None, hidden: int = 256
) -> RBM:
    """An `RBM` for samples of ``input_shape``; ``num_classes`` has no effect."""
    return RBM(input_shape, hidden, seed)


def _error(ops: Ops, v: Array, again: Array) -> float:
    difference = ops.subtract(v, again)
    return 0.5 * float(ops.multiply(difference, difference).mean()) if difference.size else 0.0
