"""A restricted Boltzmann machine: nothing goes backward, but loaders and optimizers serve it.

    python examples/rbm.py [--epochs 50]
    python examples/rbm.py --small

Hinton, 2002: contrastive divergence (CD-1), as in SINGA's example of MNIST. It learns to give back
the pixels of digits (root mean square errors), and saves its arrays. With --small it prints

    wrong by 0.4673 before, 0.1017 after; the mean image by 0.2700
"""

from __future__ import annotations

import argparse

import numpy as np

from singanet.checkpoint import write_state
from singanet.data import ArrayLoader, digits
from singanet.optimizer import SGD
from singanet.types import Array


class RBM:
    """Units v and h of 0 and 1: p(h = 1 | v) = σ(v W + c), p(v = 1 | h) = σ(h Wᵀ + b)."""

    def __init__(self, visible: int, hidden: int, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.names = ["rbm/weight", "rbm/visible", "rbm/hidden"]
        weight = 0.1 * self.rng.standard_normal((visible, hidden), np.float32)
        self.values = [weight, np.zeros(visible, np.float32), np.zeros(hidden, np.float32)]

    def up(self, v: Array) -> Array:
        """The probabilities of the hidden units."""
        return 1 / (1 + np.exp(-(v @ self.values[0] + self.values[2])))

    def down(self, h: Array) -> Array:
        """The probabilities of the visible units."""
        return 1 / (1 + np.exp(-(h @ self.values[0].T + self.values[1])))

    def given_back(self, v: Array) -> Array:
        """The samples as their hidden probabilities have them."""
        return self.down(self.up(v))

    def gradients(self, v: Array) -> list[Array]:
        """Means over a batch: v'ᵀh' − vᵀh, v' − v, h' − h; v' comes of a sample of h."""
        h = self.up(v)
        again = self.down((self.rng.random(h.shape, np.float32) < h).astype(v.dtype))
        h_again = self.up(again)
        weight = (again.T @ h_again - v.T @ h) / len(v)
        return [weight, (again - v).mean(axis=0), (h_again - h).mean(axis=0)]


def wrong(x: Array, y: Array) -> float:
    """The root of the mean squared difference."""
    return float(np.sqrt(np.mean((x - y) ** 2)))


def main() -> None:
    """Learn the digits, and say how well."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="a few epochs")
    parser.add_argument("--epochs", type=int, default=50)
    given = parser.parse_args()
    data = digits()
    x, test = (part.reshape(len(part), -1) for part in (data.x_train, data.x_test))
    machine, sgd = RBM(x.shape[1], 256), SGD(learning_rate=0.1, momentum=0.9, weight_decay=2e-4)
    before, mean = wrong(machine.given_back(test), test), wrong(x.mean(axis=0), test)
    loader = ArrayLoader(x, x, batch_size=32, seed=0)
    for _ in range(8 if given.small else given.epochs):
        for v, _ in loader:
            sgd.update(machine.names, machine.values, machine.gradients(v))
    after = wrong(machine.given_back(test), test)
    print(f"wrong by {before:.4f} before, {after:.4f} after; the mean image by {mean:.4f}")
    write_state("rbm.npz", dict(zip(machine.names, machine.values, strict=True)))


if __name__ == "__main__":
    main()
