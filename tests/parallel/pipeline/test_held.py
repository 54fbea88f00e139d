"""Weights of fewer bits on the stages of a pipeline."""

import numpy as np
import pytest

import singanet
from singanet import parallel
from singanet.device import cpu
from singanet.errors import CallOrderError, RankError
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import numpy_ops, selection
from singanet.optimizer import SGD, Accumulator, Adam
from singanet.parallel.pipeline.partition import RemoteStorage
from singanet.params.narrow import Bfloat16Weights, BlockWeights
from singanet.training.callbacks import ModelCheckpoint
from tests.kit.ranks import together
from tests.parallel.pipeline.test_pipeline import tied

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((12, 32)).astype(np.float32), RNG.integers(0, 4, 12)
IDS = RNG.integers(0, 9, (12, 3))


def chain():
    return singanet.FeedForwardNet(
        [
            Dense("a", 64, input_sample_shape=(32,)),
            Activation("a2"),
            Dense("b", 32),
            Activation("b2", mode="tanh"),
            Dense("c", 4),
        ],
        loss=SoftmaxCrossEntropy(),
        seed=3,
    )


@pytest.fixture(autouse=True)
def numpy_kernels(monkeypatch):
    """Others round rows to bfloat16 by how many there are, which micro-batches change."""
    monkeypatch.setattr(selection, "_chosen", numpy_ops)
    # A test before may have asked for the others.
    cpu.cache_clear()
    yield
    cpu.cache_clear()


def held(make, rounding):
    net = make()
    net.as_type("bfloat16", rounding=rounding)
    return net


def bits(net):
    """The memory of each parameter, held or not."""
    found = {}
    for param in net.params():
        storage = param.storage
        words = isinstance(storage, (Bfloat16Weights, BlockWeights))
        found[param.name] = [a.tobytes() for a in (storage.arrays if words else [param.value])]
    return found


def close(net, other):
    for one, two in zip(net.params(), other.params(), strict=True):
        np.testing.assert_allclose(one.peek(), two.peek(), rtol=1e-5, atol=1e-6, err_msg=one.name)


@pytest.mark.parametrize("make", [chain, tied])
def test_with_remainders_it_is_the_training_of_one_process(make):
    x = X if make is chain else IDS
    alone, gathers = held(make, "remainder"), Accumulator(Adam(lr=0.01), 4)
    for _ in range(3):
        for part in np.array_split(np.arange(len(Y)), 4):
            alone.step(x[part], Y[part], gathers)
    expected = alone.predict(x)

    def work(comm):
        net = held(make, "remainder")
        stages = ["b"] if make is chain else None
        pipeline = parallel.Pipeline(net, stages, 4, comm=comm)
        rule = Adam(lr=0.01)
        for _ in range(3):
            net.step(x, Y, rule)
        predicted = net.predict(x)
        own = [p.name for p in net.params() if isinstance(p.storage, RemoteStorage)]
        pipeline.gather()
        return net, predicted, own

    made = together(work)
    assert made[0][2]
    first = bits(made[0][0])
    for net, predicted, _ in made:
        close(net, alone)
        np.testing.assert_allclose(predicted, expected, rtol=1e-5, atol=1e-6)
        assert bits(net) == first
        kinds = {p.name for p in net.params() if isinstance(p.storage, Bfloat16Weights)}
        assert kinds == {p.name for p in alone.params() if len(p.shape) == 2}
        # It goes on as any other.
        net.step(x, Y, SGD(lr=0.1))


def test_what_is_rounded_at_random_is_words_alone_on_all_stages():
    def work(comm):
        net = held(tied, "stochastic")
        pipeline = parallel.Pipeline(net, None, 2, comm=comm)
        before = net.evaluate(IDS, Y)
        rule = SGD(lr=0.5)
        for _ in range(8):
            net.step(IDS, Y, rule)
        after = net.evaluate(IDS, Y)
        pipeline.gather()
        return net, before.loss, after.loss

    made = together(work)
    for net, before, after in made:
        assert after < before
        assert bits(net) == bits(made[0][0])
        table = net.params()[0]
        assert isinstance(table.storage, Bfloat16Weights)
        assert not np.any(table.peek().view(np.uint32) & 0xFFFF)


def test_rows_of_stages_do_not_round_at_random():
    def work(comm):
        net = held(chain, "stochastic")
        pipeline = parallel.Pipeline(net, ["b"], 2, comm=comm, replicas=2)
        before = bits_here(net)
        with pytest.raises(CallOrderError, match="stochastic rounding.*'remainder'"):
            net.step(X, Y, parallel.AllReduce(SGD(lr=0.1), pipeline.replicas))
        assert bits_here(net) == before
        # Each by itself it may.
        net.step(X, Y, SGD(lr=0.1))

    together(work, 4)


def bits_here(net):
    own = [p.storage for p in net.params() if isinstance(p.storage, Bfloat16Weights)]
    return [a.tobytes() for storage in own for a in storage.arrays]


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_blocks_are_read_on_stages_and_pairs_beside_them_trained(kind):
    def make():
        net = chain()
        net.quantize(kind)
        return net

    base = make()
    alone = make()
    alone.adapt(4, ["a", "b"])
    rule = Adam(lr=0.01)
    for _ in range(3):
        alone.step(X, Y, rule)

    def work(comm):
        net = make()
        pipeline = parallel.Pipeline(net, ["b"], 3, comm=comm)
        with pytest.raises(CallOrderError, match="blocks that cannot be updated"):
            net.step(X, Y, SGD(lr=0.1))
        predicted = net.predict(X)
        pipeline.gather()
        assert bits(net) == bits(base)
        net.adapt(4, ["a", "b"])
        pipeline = parallel.Pipeline(net, ["b"], 3, comm=comm)
        rule = Adam(lr=0.01)
        for _ in range(3):
            net.step(X, Y, rule)
        pipeline.gather()
        return predicted, net

    for predicted, net in together(work):
        np.testing.assert_allclose(predicted, base.predict(X), rtol=1e-5, atol=1e-6)
        for one, two in zip(net.params(), alone.params(), strict=True):
            np.testing.assert_allclose(one.peek(), two.peek(), rtol=1e-4, atol=1e-5)


def test_layers_move_with_their_words():
    def work(comm):
        net = held(chain, "remainder")
        pipeline = parallel.Pipeline(net, None, 2, comm=comm)
        net.step(X, Y, SGD(lr=0.1))
        before = pipeline.on_first(lambda: [p.peek().copy() for p in net.params()])
        other = dict(pipeline.places, b=1 - pipeline.places["b"])
        other["a2"] = other["a"]
        other["b2"] = other["c"] = max(other["b"], 1)
        assert pipeline._can_move(other)
        pipeline.move(other)
        assert pipeline.places == other
        after = pipeline.on_first(lambda: [p.peek().copy() for p in net.params()])
        net.step(X, Y, SGD(lr=0.1))
        pipeline.gather()
        return before, after, bits(net)

    made = together(work)
    before, after, _ = made[0]
    for one, two in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, two)
    assert made[0][2] == made[1][2]


def test_a_fit_that_goes_on_is_the_undisturbed_one(tmp_path):
    def train(comm, epochs, resume):
        net = held(chain, "remainder")
        pipeline = parallel.Pipeline(net, ["b"], 2, comm=comm)
        net.compile(Adam(lr=0.01))
        folder = tmp_path / f"{epochs} {resume}"
        files = ModelCheckpoint(tmp_path / "run" if resume or epochs == 1 else folder)
        net.fit(
            *(X, Y, 4, epochs),
            verbose=False,
            callbacks=[files],
            resume=tmp_path / "run" if resume else None,
        )
        pipeline.gather()
        return bits(net)

    together(lambda comm: train(comm, 1, False))
    again = together(lambda comm: train(comm, 3, True))
    whole = together(lambda comm: train(comm, 3, False))
    assert again == whole


def test_what_one_rank_holds_otherwise_is_refused_on_all():
    def work(comm):
        net = held(chain, "remainder") if comm.rank else chain()
        with pytest.raises(RankError):
            parallel.Pipeline(net, ["b"], comm=comm)

    together(work)


def test_types_change_when_the_net_is_whole_again():
    def work(comm):
        net = held(chain, "remainder")
        pipeline = parallel.Pipeline(net, ["b"], comm=comm)
        for call in (
            lambda: net.as_type("float32"),
            lambda: net.as_type("bfloat16"),
            lambda: net.quantize("int8"),
        ):
            with pytest.raises(CallOrderError, match="gather"):
                call()
        pipeline.gather()
        net.as_type("float32")
        assert all(param.storage.in_memory for param in net.params())

    together(work)
