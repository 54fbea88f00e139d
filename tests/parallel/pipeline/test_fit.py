"""`fit`, `evaluate` and checkpoints of nets whose layers lie on several ranks."""

import numpy as np
import pytest

import singanet
from singanet import parallel
from singanet.errors import ArgumentError, RankError
from singanet.layers import Activation, BatchNormalization, Dense, Dropout
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import AUC, Accuracy
from singanet.optimizer import SGD, Adam
from singanet.parallel.pipeline import partition
from singanet.training import Callback
from singanet.training.callbacks import EMA, SWA, EarlyStopping, ModelCheckpoint
from tests.kit.nets import values_of
from tests.kit.ranks import expect_near_values, expect_same_values, on_stages, together

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((50, 6)).astype(np.float32), RNG.integers(0, 3, 50)


class SecondClass(AUC):
    def update(self, out, y):
        super().update(out[:, 1], y == 1)


def make(*more):
    layers = [Dense("a", 8, input_sample_shape=(6,)), *more, Activation("r"), Dense("b", 5)]
    layers += [Activation("t", mode="tanh"), Dense("c", 3)]
    return singanet.FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=1)


def fit(net, rule, epochs=3, samples=50, **said):
    net.compile(rule, metrics=[Accuracy(), SecondClass()])
    said |= {"validation_data": (X[:11], Y[:11]), "clip": 1.0, "clip_by": "global"}
    return net.fit(X[:samples], Y[:samples], 16, epochs, verbose=False, **said)


def reduced(rule, pipeline):
    return parallel.AllReduce(rule, pipeline.replicas)


def expect_same_history(history, other):
    for name in other:
        if not name.startswith("bytes"):
            np.testing.assert_allclose(history[name], other[name], rtol=2e-5, err_msg=name)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_fit_is_that_of_one_process(replicas):
    def train(net, pipeline=None):
        rule = Adam(lr=0.01) if replicas == 1 or not pipeline else reduced(Adam(lr=0.01), pipeline)
        history = fit(net, rule, callbacks=[EMA(0.9, keep_at_end=True), EarlyStopping()])
        return history, [*net.evaluate(X, Y).logs.values()]

    alone = make()
    told, evaluated = train(alone)
    made = on_stages(train, make, ["b"], size=2 * replicas, replicas=replicas)
    for (history, logs), values in made:
        expect_same_history(history, told)
        assert history["bytes_sent"][0] > 0
        np.testing.assert_allclose(logs, evaluated, rtol=2e-5)
        expect_near_values(values, values_of(alone), 1e-4, 1e-6)


def test_no_mean_of_statistics_on_several_ranks():
    def train(net, pipeline):
        fit(net, Adam(lr=0.01), callbacks=[SWA(1)])

    with pytest.raises(ArgumentError, match="SWA: expected a net on one rank"):
        on_stages(train, lambda: make(BatchNormalization("n")), ["b"])


class Ends(Callback):
    def on_batch_end(self, batch, logs):
        if self.session.rank == 1 and self.session.step == 6:
            self.session.stop("rank 1 has seen enough")


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_rank_0_writes_the_whole_training_which_goes_on_to_the_bit(replicas, tmp_path):
    def run(callbacks=list, resume=None):
        def train(net, pipeline):
            rule = reduced(SGD(lr=0.1, momentum=0.9), pipeline)
            return fit(net, rule, samples=48, callbacks=callbacks(), resume=resume)

        normed = lambda: make(BatchNormalization("n"))  # noqa: E731
        return on_stages(train, normed, ["b"], size=2 * replicas, replicas=replicas)

    whole = run()
    ended = run(lambda: [Ends(), ModelCheckpoint(tmp_path, None)])
    assert {history.stopped for history, _ in ended} == {"rank 1 has seen enough"}
    again = run(lambda: [Callback(), ModelCheckpoint(tmp_path, None)], tmp_path)
    for (history, values), (told, wanted) in zip(again, whole, strict=True):
        expect_same_history(history, told)
        expect_same_values([values, wanted])
    # One process takes it up as well: the file has the parameters and momentum of all stages.
    last = max(tmp_path.glob("*.npz"), key=lambda path: path.stat().st_mtime)
    with np.load(last) as saved:
        names = {*saved.files}
    assert {f"net/{name}" for name in whole[0][1]} <= names
    assert {f"optimizer/{name}/weight/momentum" for name in "abc"} <= names
    one = make(BatchNormalization("n"))
    history = fit(one, SGD(lr=0.1, momentum=0.9), samples=48, callbacks=[Ends()], resume=str(last))
    assert history.epochs == [0, 1, 2]


class Slow(Activation):
    """Takes as long as this run of the test says, by a clock that only it moves."""

    clock, slow = 0.0, ()

    def forward(self, ctx, x):
        Slow.clock += 1.0 if self.name in self.slow else 0.0
        return super().forward(ctx, x)


def test_the_cut_is_that_of_the_checkpoint(tmp_path, monkeypatch):
    """Layers that were timed lay elsewhere after a restart, and each stage drew on for others."""

    def looked_at():
        Slow.clock += 0.125
        return Slow.clock

    monkeypatch.setattr(partition, "perf_counter", looked_at)

    def run(slow, first=None, stages="measure", resume=None):
        """The places of layers before and after a fit, and the values, of each rank."""

        def train(net, pipeline):
            cut = dict(pipeline.places)
            net.compile(SGD(lr=0.1, momentum=0.9))
            saves = [first(), ModelCheckpoint(tmp_path, None)] if first else []
            net.fit(X, Y, 16, 3, callbacks=saves, resume=resume, verbose=False)
            return cut, dict(pipeline.places)

        def timed():
            drops = [Dropout("d0", 0.4), Slow("early"), Dense("m", 6), Dropout("d1", 0.4)]
            return make(*drops, Slow("late"))

        Slow.slow = slow
        return on_stages(train, timed, stages, 2)

    ((cut, told), whole), _ = run(("early",))
    assert cut == told
    run(("early",), Ends)
    for (began, ended), values in run(("late",), Callback, resume=tmp_path):
        assert began != cut
        assert ended == cut
        expect_same_values([values, whole])
    # Who says which layer where is asked first.
    own = ["m"] if cut["m"] == 0 else ["c"]
    for (began, ended), _ in run((), Ends, own, tmp_path):
        assert began == ended != cut


@pytest.mark.parametrize("frozen", [["a"], ["b", "c"]])
@pytest.mark.parametrize("when", [0, 2])
def test_a_stage_that_trains_nothing_knows_when_the_norm_is_due(frozen, when):
    """It had gathered nothing, and waited for the others' norm in the middle of a fit."""

    class Freezes(Callback):
        def on_batch_begin(self, batch):
            if self.session.step == when:
                freeze(self.session.net)

    def freeze(net):
        for name in frozen:
            for param in net[name].params.values():
                param.trainable = False

    def train(net, pipeline=None):
        if not when:
            freeze(net)
        net.compile(SGD(lr=0.1, momentum=0.9))
        said = {"clip": 0.3, "clip_by": "global", "accumulate": 2, "verbose": False}
        net.fit(X[:48], Y[:48], 12, 2, callbacks=[Freezes()], **said)

    alone = make()
    train(alone)
    for _, values in on_stages(train, make, ["b"], 2):
        expect_near_values(values, values_of(alone), 1e-4, 1e-6)


@pytest.mark.parametrize("frozen", ["b", None])
def test_the_rate_told_is_that_of_what_is_trained(frozen):
    """Where stage 0 trains nothing its rule takes no steps, and its rate stood still."""

    def train(net, pipeline=None):
        if frozen:
            net.freeze(frozen)
        net.compile(SGD(lr=lambda step: 0.5 / (1 + step)))
        return net.fit(X, Y, 16, 3, verbose=False)["lr"]

    told = train(make())
    assert [lr for lr, _ in on_stages(train, make, ["b"], 2)] == [told] * 2
    assert told[0] > told[2]


def test_ranks_that_were_given_other_data_are_told():
    def work(comm):
        net = make()
        parallel.Pipeline(net, ["b"], comm=comm)
        net.compile(SGD(lr=0.1))
        net.fit(X + comm.rank, Y, verbose=False)

    with pytest.raises(RankError, match="data"):
        together(work)
