"""Two nets against each other: one draws digits, one tells them from real ones.

    python examples/gan.py [--steps 3000]
    python examples/gan.py --small

Goodfellow et al., 2014; both are programs over one graph. A LeNet that has learnt the real digits
tells how like one a drawing is. With --small it prints

    drawings that LeNet is sure of after 300 steps: 38%
    digits among them: 0 1 2 3 4 6 8 9
"""

from __future__ import annotations

import argparse

import numpy as np

from singanet import Executor, Input, models
from singanet.data import digits
from singanet.layers import Activation, Add, BatchNormalization, Dense, Layer
from singanet.layers.symbol import Symbol
from singanet.loss import SigmoidCrossEntropy
from singanet.optimizer import Adam

CODE, PIXELS = 16, 64


def through(symbol: Symbol, layers: list[Layer]) -> Symbol:
    """``symbol`` through one after the other."""
    for layer in layers:
        symbol = layer(symbol)
    return symbol


def main() -> None:
    """Let them play, and show what came of it to another net."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="300 steps")
    parser.add_argument("--steps", type=int, default=3000)
    given = parser.parse_args()
    data, rng = digits(), np.random.default_rng(0)
    judge = models.build("lenet", data.sample_shape, data.num_classes, seed=0)
    judge.compile(Adam(learning_rate=0.002))
    judge.fit(data.x_train, data.y_train, epochs=4, verbose=False)

    maker = [Dense("m1", 64), BatchNormalization("m2"), Activation("m3"), Dense("m4", 128)]
    maker += [BatchNormalization("m5"), Activation("m6"), Dense("m7", PIXELS)]
    maker += [Activation("m8", "sigmoid")]
    critic = [Dense("c1", 128), Activation("c2"), Dense("c3", 64), Activation("c4"), Dense("c5", 1)]
    noise, real = Input("noise", (CODE,)), Input("real", (PIXELS,))
    yes, no, cross = Input("yes", (1,)), Input("no", (1,)), SigmoidCrossEntropy()
    made = through(noise, maker)
    judged = through(made, critic)
    of_critic = Add("both")(cross(through(real, critic), yes), cross(judged, no))
    of_maker = cross(judged, yes)
    by_critic = Adam(learning_rate=0.0005, beta_1=0.5).minimize(of_critic, critic)
    by_maker = Adam(learning_rate=0.001, beta_1=0.5).minimize(of_maker, maker)
    programs = Executor(
        {"critic": [of_critic, by_critic], "maker": [of_maker, by_maker], "make": [made]}, seed=0
    )
    x, ones = data.x_train.reshape(-1, PIXELS), np.ones((64, 1), np.float32)
    steps = 300 if given.small else given.steps
    for _ in range(steps):
        z, rows = rng.standard_normal((64, CODE), np.float32), rng.integers(0, len(x), 64)
        programs.run("critic", {noise: z, real: x[rows], yes: 0.9 * ones, no: 0 * ones})
        programs.run("maker", {noise: z, yes: ones})
    (drawn,) = programs.run("make", {noise: rng.standard_normal((256, CODE), np.float32)})
    found = judge.predict(drawn.reshape(-1, 1, 8, 8))
    sure = found.max(axis=1) > 0.9
    print(f"drawings that LeNet is sure of after {steps} steps: {sure.mean():.0%}")
    print("digits among them:", *np.unique(found.argmax(axis=1)[sure]))


if __name__ == "__main__":
    main()
