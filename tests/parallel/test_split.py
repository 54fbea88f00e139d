import numpy as np
import pytest

import singanet
from singanet.errors import ArgumentError, RankError
from singanet.layers import Activation, Dense, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import Adam
from singanet.parallel import SingleProcess, SplitDense, SplitEmbedding
from tests.kit.ranks import together

RNG = np.random.default_rng(0)
IDS, Y = RNG.integers(0, 11, (9, 3)), RNG.integers(0, 4, 9)


def whole(transposed):
    return singanet.FeedForwardNet(
        [
            Embedding("e", 11, 5, input_sample_shape=(3,)),
            Flatten("f"),
            Dense("a", 7, W_transpose=transposed),
            Activation("r"),
            Dense("b", 4),
        ],
        loss=SoftmaxCrossEntropy(),
        seed=2,
    )


def split(comm, transposed, first, second, third):
    return singanet.FeedForwardNet(
        [
            SplitEmbedding("e", 11, 5, first, comm, input_sample_shape=(3,)),
            Flatten("f"),
            SplitDense("a", 7, second, comm, W_transpose=transposed),
            Activation("r"),
            SplitDense("b", 4, third, comm),
        ],
        loss=SoftmaxCrossEntropy(),
        seed=2,
    )


@pytest.mark.parametrize(("ranks", "transposed"), [(1, False), (2, True), (3, False)])
@pytest.mark.parametrize(
    "kinds", [("rows", "columns", "rows"), ("columns", "rows", "columns")], ids="-".join
)
def test_ranks_train_slices_as_one_process_the_whole(ranks, transposed, kinds):
    alone = whole(transposed)
    rule = Adam(lr=0.05)
    losses = [alone.step(IDS, Y, rule)[0] for _ in range(5)]
    outputs = [alone.forward(False, IDS) for _ in range(3)]
    wanted = {param.name: param.value for param in alone.params()}

    def work(comm):
        net = split(comm, transposed, *kinds)
        rule = Adam(lr=0.05)
        told = [net.step(IDS, Y, rule)[0] for _ in range(5)]
        # A recording would ask the others while it only tries what it has written down.
        shown = [net.forward(False, IDS) for _ in range(3)]
        assert len(net.programs.refusals) == 2
        return told, shown, {param.name: param.value for param in net.params()}

    runs = together(work, ranks)
    for told, shown, _ in runs:
        np.testing.assert_allclose(told, losses, rtol=1e-5)
        np.testing.assert_allclose(shown, outputs, rtol=1e-4, atol=1e-5)
    for name, value in wanted.items():
        parts = [values[name] for _, _, values in runs]
        axis = next((k for k in range(value.ndim) if parts[0].shape[k] != value.shape[k]), None)
        made = parts[0] if axis is None else np.concatenate(parts, axis)
        np.testing.assert_allclose(made, value, rtol=1e-4, atol=1e-5, err_msg=name)
        assert sum(part.size for part in parts) < value.size + len(value) * ranks


def test_what_is_refused():
    def other_samples(comm):
        net = split(comm, False, "rows", "rows", "rows")
        net.step((IDS + comm.rank) % 11, Y, Adam(lr=0.1))

    with pytest.raises(RankError, match="same samples"):
        together(other_samples)
    with pytest.raises(ArgumentError, match="ranks"):
        together(
            lambda comm: SplitDense("a", 2, "columns", comm, input_sample_shape=(5,)).build((5,)), 3
        )
    with pytest.raises(ArgumentError, match="columns"):
        SplitDense("a", 2, "diagonals", SingleProcess())
