"""Weights of fewer bits on the stages of a pipeline."""

from functools import partial

import numpy as np
import pytest

from singanet import parallel
from singanet.device import cpu
from singanet.errors import CallOrderError, RankError
from singanet.layers import Activation, Dense
from singanet.ops import numpy_ops, selection
from singanet.optimizer import SGD, Accumulator, Adam
from singanet.parallel.pipeline.partition import RemoteStorage
from singanet.params.narrow import Bfloat16Weights, BlockWeights
from singanet.training.callbacks import ModelCheckpoint
from tests.kit.nets import values_of
from tests.kit.ranks import expect_near_values, together
from tests.parallel.pipeline.test_pipeline import net_of, tied

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((12, 32)).astype(np.float32), RNG.integers(0, 4, 12)
IDS = RNG.integers(0, 9, (12, 3))


def chain():
    made = [Dense("a", 64, input_sample_shape=(32,)), Activation("a2"), Dense("b", 32)]
    return net_of([*made, Activation("b2", mode="tanh"), Dense("c", 4)])


@pytest.fixture(autouse=True)
def numpy_kernels(monkeypatch):
    """Others round rows to bfloat16 by how many there are, which micro-batches change."""
    monkeypatch.setattr(selection, "_chosen", numpy_ops)
    # A test before may have asked for the others.
    cpu.cache_clear()
    yield
    cpu.cache_clear()


def held(make=chain, rounding="remainder"):
    net = make()
    net.as_type("bfloat16", rounding=rounding)
    return net


def narrow(net):
    return {p.name: p.storage for p in net.params() if isinstance(p.storage, Bfloat16Weights)}


def bits(net):
    found = {}
    for param in net.params():
        words = isinstance(param.storage, (Bfloat16Weights, BlockWeights))
        found[param.name] = [
            a.tobytes() for a in (param.storage.arrays if words else [param.value])
        ]
    return found


def piped(comm, net, stages=("b",), micro=2, **more):
    return net, parallel.Pipeline(net, stages and [*stages], micro, comm=comm, **more)


@pytest.mark.parametrize(("make", "x", "stages"), [(chain, X, ["b"]), (tied, IDS, None)])
def test_with_remainders_it_is_the_training_of_one_process(make, x, stages):
    alone, gathers = held(make), Accumulator(Adam(lr=0.01), 4)
    for _ in range(3):
        for part in np.array_split(np.arange(len(Y)), 4):
            alone.step(x[part], Y[part], gathers)
    expected = alone.predict(x)

    def work(comm):
        (net, pipeline), rule = piped(comm, held(make), stages, 4), Adam(lr=0.01)
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
        expect_near_values(values_of(net), values_of(alone), 1e-5, 1e-6)
        np.testing.assert_allclose(predicted, expected, rtol=1e-5, atol=1e-6)
        assert bits(net) == first
        assert narrow(net).keys() == {p.name for p in alone.params() if len(p.shape) == 2}
        # It goes on as any other.
        net.step(x, Y, SGD(lr=0.1))


@pytest.mark.parametrize("rounding", ["remainder", "stochastic"])
@pytest.mark.parametrize(("make", "x", "stages"), [(chain, X, ["b"]), (tied, IDS, None)])
def test_recorded_stages_make_the_bits_of_their_layers(make, x, stages, rounding):
    def work(comm, recorded):
        net, pipeline = piped(comm, held(make, rounding), stages, 4)
        pipeline.programs.enabled = recorded
        rule = Adam(lr=0.01)
        losses = [net.step(x, Y, rule)[0] for _ in range(5)]
        predicted = [net.predict(x) for _ in range(3)]
        assert len(pipeline.programs.reports()) == 2 * recorded, pipeline.programs.refusals
        pipeline.gather()
        return losses, predicted, bits(net)

    made = [together(partial(work, recorded=recorded)) for recorded in (False, True)]
    for wanted, found in zip(*made, strict=True):
        np.testing.assert_equal(found, wanted)


def test_what_is_rounded_at_random_is_words_alone_on_all_stages():
    def work(comm):
        (net, pipeline), rule = piped(comm, held(tied, "stochastic"), None), SGD(lr=0.5)
        before = net.evaluate(IDS, Y)
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
        assert table.name in narrow(net)
        assert not np.any(table.peek().view(np.uint32) & 0xFFFF)


def test_rows_of_stages_do_not_round_at_random():
    def work(comm):
        net, pipeline = piped(comm, held(chain, "stochastic"), replicas=2)
        here = lambda: [a.tobytes() for each in narrow(net).values() for a in each.arrays]  # noqa: E731
        before = here()
        with pytest.raises(CallOrderError, match="stochastic rounding.*'remainder'"):
            net.step(X, Y, parallel.AllReduce(SGD(lr=0.1), pipeline.replicas))
        assert here() == before
        # Each by itself they may.
        net.step(X, Y, SGD(lr=0.1))

    together(work, 4)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_blocks_are_read_on_stages_and_pairs_beside_them_trained(kind):
    def make():
        net = chain()
        net.quantize(kind)
        return net

    base, alone = make(), make()
    alone.adapt(4, ["a", "b"])
    rule = Adam(lr=0.01)
    for _ in range(3):
        alone.step(X, Y, rule)

    def work(comm):
        net, pipeline = piped(comm, make(), micro=3)
        with pytest.raises(CallOrderError, match="blocks that cannot be updated"):
            net.step(X, Y, SGD(lr=0.1))
        predicted = net.predict(X)
        pipeline.gather()
        assert bits(net) == bits(base)
        net.adapt(4, ["a", "b"])
        (net, pipeline), rule = piped(comm, net, micro=3), Adam(lr=0.01)
        for _ in range(3):
            net.step(X, Y, rule)
        pipeline.gather()
        return predicted, net

    for predicted, net in together(work):
        np.testing.assert_allclose(predicted, base.predict(X), rtol=1e-5, atol=1e-6)
        expect_near_values(values_of(net), values_of(alone), 1e-4, 1e-5)


def test_layers_move_with_their_words():
    def work(comm):
        net, pipeline = piped(comm, held(), None)
        net.step(X, Y, SGD(lr=0.1))
        looks = lambda: pipeline.on_first(lambda: values_of(net))  # noqa: E731
        before = looks()
        other = dict(pipeline.places, b=1 - pipeline.places["b"])
        other["a2"] = other["a"]
        other["b2"] = other["c"] = max(other["b"], 1)
        assert pipeline._can_move(other)
        pipeline.move(other)
        assert pipeline.places == other
        np.testing.assert_equal(looks(), before)
        net.step(X, Y, SGD(lr=0.1))
        pipeline.gather()
        return bits(net)

    first, second = together(work)
    assert first == second


def test_a_fit_that_goes_on_is_the_undisturbed_one(tmp_path):
    def train(epochs, folder, resume=None):
        def work(comm):
            net, pipeline = piped(comm, held())
            net.compile(Adam(lr=0.01))
            files = ModelCheckpoint(tmp_path / folder)
            net.fit(X, Y, 4, epochs, verbose=False, callbacks=[files], resume=resume)
            pipeline.gather()
            return bits(net)

        return together(work)

    train(1, "run")
    assert train(3, "run", tmp_path / "run") == train(3, "whole")


def test_what_one_rank_holds_otherwise_and_other_types_are_refused():
    def differ(comm):
        with pytest.raises(RankError):
            piped(comm, held() if comm.rank else chain())

    def change(comm):
        net, pipeline = piped(comm, held())
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

    together(differ)
    together(change)
