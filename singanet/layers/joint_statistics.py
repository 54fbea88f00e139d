"""Statistics of a batch of which several processes have a part each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from singanet.base.collectives import SharedBatch
from singanet.errors import CallOrderError
from singanet.ops import Ops
from singanet.types import Array


@dataclass(frozen=True, slots=True)
class JointStatistics:
    """``mean`` and biased ``var`` (C,) of the ``count`` values that a channel has on all ranks."""

    shared: SharedBatch
    count: float
    mean: Array
    var: Array

    @classmethod
    def of(cls, shared: SharedBatch, ops: Ops, x: Array) -> JointStatistics:
        """Of the parts ``x`` (B, C, ...), of which some may be empty.

        Each rank tells count, mean and variance about its own mean, in float64: Chan, Golub and
        LeVeque, 1979.
        """
        axes, channels = tuple(axis for axis in range(x.ndim) if axis != 1), x.shape[1]
        own = np.zeros((3, channels))
        if len(x):
            own[0] = x.size // channels
            own[1] = ops.host(x.mean(axis=axes, dtype="float64"))
            own[2] = ops.host(x.var(axis=axes, dtype="float64"))
        parts = shared.comm.all_gather(own[None], "the statistics of a batch")
        counts, means, spreads = np.concatenate(parts).transpose(1, 0, 2)
        count = counts.sum(axis=0)
        share = counts / np.maximum(count, 1)
        mean = (share * means).sum(axis=0)
        var = (share * (spreads + (means - mean) ** 2)).sum(axis=0)
        put, kind = ops.xp.asarray, np.promote_types(x.dtype, np.float32)
        return cls(shared, float(count[0]), put(mean, kind), put(var, kind))

    def corrected(
        self, ops: Ops, dx: Array, x: Array, scale: Array, inverse: Array, *sums: Array
    ) -> Array:
        """``dx`` of statistics that were fixed, as it is since they depend on all parts.

        dx = scale (dy - mean(dy) - x̂ mean(dy x̂)), the means over all ranks, of gradients of the
        loss of all. ``scale`` = gamma inverse; ``sums`` = Σ dy, Σ dy x̂ of this rank, by its loss.
        """
        weight = 1.0 if self.shared.weight is None else self.shared.weight
        own = np.stack([np.asarray(ops.host(each), np.float64) for each in sums]) * weight
        total = self.shared.comm.all_reduce(own, what="the gradients of a batch's statistics")
        if not len(x):
            return dx
        if not weight and total.any():
            raise CallOrderError(
                "synchronized statistics",
                expected="a weight above 0, as other ranks' losses depend on these samples",
                received="0, as no label of this rank counts",
                advice="multiply the gradient of the loss by optimizer.shares(len(x), counts), and "
                "call optimizer.begin(len(x))",
            )
        means = ops.xp.asarray(total / ((weight or 1.0) * self.count), self.mean.dtype)
        wide = (1, -1, *[1] * (x.ndim - 2))
        by_x = scale * inverse * means[1]
        constant = scale * means[0] - by_x * self.mean
        corrected: Array = dx - constant.reshape(wide) - x * by_x.reshape(wide)
        return corrected.astype(dx.dtype, copy=False)
