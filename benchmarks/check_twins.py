"""Whether the nets of the comparisons and their twins in PyTorch compute the same.

Both get the same random parameters and running statistics, and samples; each line tells the
numbers trained and the largest difference of the probabilities, by their deviation.
"""

from __future__ import annotations

import numpy as np
import torch
import twins
from cases import CASES, batch_of, build, parameters

import singanet

TOLERANCE = 1e-4


def randomise(net: singanet.FeedForwardNet) -> None:
    """Fill all parameters, so that no factor of zero hides a part of the net."""
    rng = np.random.default_rng(1)
    for param in net.params():
        value = 0.02 * rng.standard_normal(param.shape, np.float32)
        if param.name.endswith(("gamma", "var")):
            value = 1 + np.abs(value)
        param.value[...] = value


def main() -> None:
    """Print a line a net; exit with an error where one differs."""
    wrong = []
    for model in dict.fromkeys(case.model for case in CASES):
        net, twin = build(model), twins.build(model).eval()
        randomise(net)
        twins.copy_weights(net, twin)
        x, _ = batch_of(model, 3)
        ours = net.predict(x)
        inputs = x.values() if isinstance(x, dict) else [x]
        with torch.inference_mode():
            theirs = twin(*map(torch.from_numpy, inputs)).softmax(-1).numpy()
        counts = parameters(net), sum(p.numel() for p in twin.parameters())
        apart = float(np.abs(ours - theirs).max() / ours.std())
        print(f"{model}: {counts[0]:,} and {counts[1]:,} parameters, difference {apart:.1e}")
        if counts[0] != counts[1] or not apart < TOLERANCE:
            wrong.append(model)
    if wrong:
        raise SystemExit(f"not the same: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
