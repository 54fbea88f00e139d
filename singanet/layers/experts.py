"""Mixtures of experts: gated units, of which a router chooses some for each step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from singanet.base.words import REQUIRED
from singanet.layers.activations import GATES, gated, gated_back
from singanet.layers.context import Context
from singanet.layers.dense import as_rows, expect_features, product, product_back
from singanet.layers.layer import Layer, Name, ParamSpecs, expect_int, expect_one_of
from singanet.ops.interface import Ops
from singanet.types import Array, GivenShape, Shapes, Traits

_PARTS = ("gate", "up", "down")
_MOST = 1 << 12
"""The maximum number of experts of a layer."""


class MixtureOfExperts(Layer):
    """y = Σ p_e E_e(x) over the last axis of each sample, of the ``top_k`` experts with largest p.

    p = softmax(x Wr) are the probabilities of the router (Shazeer et al. 2017), with ``normalized``
    divided by the sum of the chosen ones. Expert e is a `GatedUnit` without biases, E_e(x) = (f(x
    Wg) * (x Wu)) Wd, and multiplies only the rows that chose it, so that the work grows with
    ``top_k`` and not with the number of experts. No loss balances the experts.

    Parameters: ``router_weight`` (in, num_experts); of each expert ``gate_0_weight`` and
    ``up_0_weight`` (in, units) and ``down_0_weight`` (units, in), with its number.

    Args:
        name: Name of the layer, a string.
        units: Positive int, the number of hidden features of an expert.
        num_experts: Positive int, at most 4096.
        top_k: Int, the number of experts that compute a row.
        mode: Name of the function f, "silu" by default.
        normalized: Whether the probabilities of the chosen experts sum to 1.
        W_specs: Dict with the settings of the weights, or a `Param` of another layer to share.
        input_shape: Sample shape, to create the parameters at once.

    Examples:
        >>> x = singanet.Input("x", (10, 64))
        >>> singanet.layers.MixtureOfExperts(units=32, num_experts=8, top_k=2)(x).shape
        (10, 64)
    """

    traits = Traits(any_extent=True, masks="keeps")

    def __init__(
        self,
        name: Name = None,
        units: int = REQUIRED,
        num_experts: int = REQUIRED,
        top_k: int = 2,
        *,
        mode: str = "silu",
        normalized: bool = True,
        W_specs: ParamSpecs = None,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        self.units = expect_int(name, "units", units)
        # Each expert has parameters of its own, so that a file could ask for any number of them.
        self.num_experts = expect_int(name, "num_experts", num_experts, most=_MOST)
        self.top_k = expect_int(
            name, "top_k", top_k, most=num_experts, advice="an expert computes a row once"
        )
        self.mode = expect_one_of(name, "mode", mode, GATES)
        self.normalized = bool(normalized)
        self.W_specs = W_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """(..., in), unchanged."""
        expect_features(self, in_shapes)
        size, units = in_shapes[-1], self.units
        self._add("router", size, self.num_experts)
        for k in range(self.num_experts):
            self._add(f"gate_{k}", size, units)
            self._add(f"up_{k}", size, units)
            self._add(f"down_{k}", units, size)
        shape: Shapes = in_shapes
        return shape

    def _add(self, part: str, inward: int, outward: int) -> None:
        self.add_param(f"{part}_weight", (inward, outward), self.W_specs, fans=(inward, outward))

    def matrices(self) -> dict[str, bool]:
        """Return all weights."""
        names = (f"{part}_{k}_weight" for k in range(self.num_experts) for part in _PARTS)
        return {"router_weight": False, **dict.fromkeys(names, False)}

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, ..., in), unchanged; x, the router's results and both products with x are saved."""
        ops, rows, count = ctx.ops, as_rows(x), self.top_k
        p = ops.softmax(product(self, ctx, rows, "router_"))
        chosen = ops.xp.argsort(ops.xp.negative(p), axis=-1, kind="stable")[:, :count]
        # The places of the chosen probabilities among all, then the pairs of rows and experts in
        # the order of the experts.
        firsts = ops.xp.arange(0, p.size, self.num_experts).reshape(-1, 1)
        places = ops.xp.add(chosen, firsts).reshape(-1)
        owners = chosen.reshape(-1)
        order = ops.xp.argsort(owners, kind="stable")
        back = ops.xp.argsort(order, kind="stable")
        owners = ops.gather_rows(owners.reshape(-1, 1), order).reshape(-1)
        sources = ops.xp.floor_divide(order, count)
        share, total = ops.gather_rows(p.reshape(-1, 1), places).reshape(-1, count), None
        if self.normalized:
            total = ops.sum(share, axis=1, keepdims=True)
            share = ops.divide(share, total)
        ctx.save(x=x, p=p, places=places, order=order, back=back, owners=owners, sources=sources)
        ctx.save(share=share, total=total)
        given = ops.gather_rows(rows, sources)
        gate, up = (self._by_expert(ctx, given, owners, part) for part in ("gate", "up"))
        ctx.save(gate=gate, up=up)
        inner = gated(ops, self.mode, gate, up)
        inner = ops.multiply(inner, ops.gather_rows(share.reshape(-1, 1), order), out=inner)
        y = self._by_expert(ctx, inner, owners, "down")
        return self._summed(ops, y, back).reshape(x.shape)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, dict[str, Array]]:
        """Return the gradients of x and of the parameters, 0 for experts without a row."""
        ops, saved, count = ctx.ops, ctx.saved, self.top_k
        x, p, owners, order = (saved[key] for key in ("x", "p", "owners", "order"))
        share, back, gate, up = (saved[key] for key in ("share", "back", "gate", "up"))
        grads: dict[str, Array] = {}
        by_pair = ops.gather_rows(share.reshape(-1, 1), order)
        opened = ops.activation(self.mode, gate)
        unit = ops.multiply(opened, up)
        dpairs = ops.gather_rows(as_rows(dy), saved["sources"])
        inner = ops.multiply(unit, by_pair)
        dinner = self._by_expert_back(ctx, dpairs, inner, owners, "down", grads, True)
        dshare = ops.sum(ops.multiply(dinner, unit), axis=1, keepdims=True)
        dunit = ops.multiply(dinner, by_pair, out=dinner)
        dgate, dup = gated_back(ops, self.mode, dunit, gate, up, opened)
        rows = as_rows(x)
        given = ops.gather_rows(rows, saved["sources"])
        wanted = ctx.needs_input_grad
        parts = [
            self._by_expert_back(ctx, d, given, owners, part, grads, wanted)
            for part, d in (("gate", dgate), ("up", dup))
        ]
        dshare = ops.gather_rows(dshare, back).reshape(-1, count)
        if self.normalized:
            mean = ops.sum(ops.multiply(dshare, share), axis=1, keepdims=True)
            dshare = ops.divide(ops.subtract(dshare, mean), saved["total"])
        dp = ops.zeros((p.size, 1), p)
        dp = ops.add_to_rows(dp, saved["places"], dshare.reshape(-1, 1), out=dp)
        dscores = ops.softmax_backward(dp.reshape(p.shape), p)
        dx = product_back(self, ctx, rows, dscores, grads, wanted, "router_")
        grads = {suffix: grads[suffix] for suffix in self.params if suffix in grads}
        if not wanted:
            return None, grads
        dpairs = ops.add(parts[0], parts[1], out=parts[0])
        return ops.add(dx, self._summed(ops, dpairs, back), out=dx).reshape(x.shape), grads

    def _summed(self, ops: Ops, pairs: Array, back: Array) -> Array:
        """Return the sum of each row's pairs (rows, ·)."""
        by_row = ops.gather_rows(pairs, back).reshape(-1, self.top_k, pairs.shape[1])
        return ops.sum(by_row, axis=1)

    def _by_expert(self, ctx: Context, x: Array, owners: Array, part: str) -> Array:
        """Multiply each row by the weight ``part`` of its expert; ``owners`` are in order."""
        weights = [ctx.params[f"{part}_{k}_weight"] for k in range(self.num_experts)]
        y = ctx.ops.empty((len(x), weights[0].shape[1]), x)
        adds = len(x) * weights[0].size
        ctx.ops.as_one(_products, [y], [x, owners, *weights], (1, x.dtype), adds)
        return y

    def _by_expert_back(
        self,
        ctx: Context,
        dy: Array,
        x: Array,
        owners: Array,
        part: str,
        grads: dict[str, Array],
        wanted: bool,
    ) -> Any:
        """Return the gradient of x if ``wanted``, and add the gradients of weights to ``grads``."""
        ops, names = ctx.ops, [f"{part}_{k}_weight" for k in range(self.num_experts)]
        weights = [ctx.params[name] for name in names]
        adds = len(x) * weights[0].size
        if ctx._needs_param_grads and any(ctx.wants(name) for name in names):
            made = [ops.empty(weight.shape, x) for weight in weights]
            ops.as_one(_gradients, made, [x, dy, owners], (1, x.dtype), adds)
            grads.update((n, d) for n, d in zip(names, made, strict=True) if ctx.wants(n))
        if not wanted:
            return None
        dx = ops.empty(x.shape, x)
        turned = [weight.T for weight in weights]
        ops.as_one(_products, [dx], [dy, owners, *turned], (1, x.dtype), adds)
        return dx


def _products(ops: Ops, working: Array, y: Array, x: Array, owners: Array, *weights: Array) -> None:
    """Write the products of rows with the weights of their experts."""
    for expert, part in _runs(ops, owners):
        ops.matmul(x[part], weights[expert], out=y[part])


def _gradients(ops: Ops, working: Array, *given: Array) -> None:
    """Write the gradients of the weights of all experts."""
    *made, x, dy, owners = given
    idle = {*range(len(made))}
    for expert, part in _runs(ops, owners):
        ops.matmul(x[part].T, dy[part], out=made[expert])
        idle.remove(expert)
    for expert in idle:
        ops.copyto(made[expert], 0)


def _runs(ops: Ops, owners: Array) -> Iterator[tuple[int, slice]]:
    """Yield each expert that has rows and its slice of them, given the sorted ``owners``."""
    of = ops.host(owners)
    changes = (np.flatnonzero(of[1:] != of[:-1]) + 1).tolist()
    for start, stop in pairwise([0, *changes, len(of)]):
        if start < stop:
            yield int(of[start]), slice(start, stop)
