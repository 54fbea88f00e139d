"""Optimizers as users write them."""

from singanet.optimizer import Optimizer


class Plain(Optimizer):
    """A rule with an `update` of its own, which no program can record."""

    def __init__(self, lr=0.01):
        super().__init__(lr=lr)

    def update(self, names, values, grads, scale=1.0):
        for value, grad in zip(values, grads, strict=True):
            value -= 0.01 * grad * scale

    def _scalars(self, state, rate):
        return ()

    def _sweep(self, *arguments):
        raise AssertionError

    _sweep_rows = _sweep
