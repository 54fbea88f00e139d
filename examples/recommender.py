"""Which film next: users and films as vectors, in served tables of which a worker keeps a part.

    python examples/recommender.py [--epochs 8]
    python examples/recommender.py --small

The ratings are made, of tastes and kinds that nobody is told, and noise; few films are rated often.
The tables are served here by the process itself, under ``singanet launch --servers 1`` by another.
With --small it prints

    500 users, 400 films, 36000 ratings to learn from
    off by 1.14 with the film's mean, by 0.57 with the net, of which 0.5 is noise
    of the films 48% were kept here, 24% of the bytes saved
    user 7 might like 229 1 211 whose places are in truth 1 4 14
"""

from __future__ import annotations

import argparse

import numpy as np

from singanet import FeedForwardNet, Input
from singanet.layers import Add, Cache, Dot, Embedding, Flatten
from singanet.loss import SquaredError
from singanet.optimizer import AdaGrad
from singanet.parallel import Hybrid

NOISE, SIZE = 0.5, 8


def build(users: int, films: int) -> FeedForwardNet:
    """A rating is how alike the two vectors are, and how much the film is liked by all."""
    user, film = Input("user", (1,), dtype="int64"), Input("film", (1,), dtype="int64")
    kept = Cache("lfu", capacity=0.3, pull_bound=10, push_bound=10)
    specs = {"init": "gaussian", "mean": 0.0, "std": 0.3}
    taste = Embedding("tastes", users, SIZE, W_specs=specs)(user)
    kind = Embedding("kinds", films, SIZE, W_specs=specs, cache=kept)(film)
    alike = Dot("alike")(Flatten("one user")(taste), Flatten("one film")(kind))
    liked = Flatten("how much")(Embedding("liked", films, 1)(film))
    return FeedForwardNet(inputs=[user, film], outputs=Add("rating")(alike, liked), seed=0)


def main() -> None:
    """Learn from ratings, foretell others, recommend."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="few users and epochs")
    parser.add_argument("--epochs", type=int, default=8)
    given = parser.parse_args()
    users, films, epochs = (500, 400, 4) if given.small else (4000, 2000, given.epochs)
    rng, count = np.random.default_rng(0), 80 * users
    tastes, kinds = rng.standard_normal((users, 4)), rng.standard_normal((films, 4)) / 2
    truth = (tastes @ kinds.T + rng.standard_normal(films) / 2).astype(np.float32)
    user, film = rng.integers(0, users, count), (films * rng.random(count) ** 3).astype(int)
    rating = truth[user, film] + NOISE * rng.standard_normal(count).astype(np.float32)
    x, old = {"user": user[:, None], "film": film[:, None]}, np.arange(count) < count * 9 // 10
    print(f"{users} users, {films} films, {old.sum()} ratings to learn from")
    net, optimizer = build(users, films), Hybrid(AdaGrad(learning_rate=0.2))
    net.compile(optimizer, SquaredError())
    seen, new = ({name: part[rows] for name, part in x.items()} for rows in (old, ~old))
    net.fit(seen, rating[old, None], batch_size=128, epochs=epochs, verbose=False)

    sums = np.bincount(film[old], rating[old], films)
    means = sums / np.maximum(np.bincount(film[old], minlength=films), 1)
    both = means[film[~old]], net.predict(new)[:, 0]
    off = [np.sqrt(np.mean((found - rating[~old]) ** 2)) for found in both]
    print(f"off by {off[0]:.2f} with the film's mean, by {off[1]:.2f} with the net, ", end="")
    print(f"of which {NOISE} is noise")
    told = optimizer.lookups["kinds/weight"]
    print(f"of the films {told.hit_rate:.0%} were kept here, {told.saved:.0%} of the bytes saved")
    every = {"user": np.full((films, 1), 7), "film": np.arange(films)[:, None]}
    best = net.predict(every)[:, 0].argsort()[::-1][:3]
    places = (-truth[7]).argsort().argsort()[best] + 1
    print("user 7 might like", *best, "whose places are in truth", *places)


if __name__ == "__main__":
    main()
