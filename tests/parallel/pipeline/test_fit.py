"""`fit`, `evaluate` and checkpoints of nets whose layers lie on several ranks."""

import numpy as np
import pytest

import singanet
from singanet import parallel
from singanet.errors import RankError
from singanet.layers import Activation, BatchNormalization, Dense, Dropout
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import AUC, Accuracy
from singanet.optimizer import SGD, Adam
from singanet.parallel.pipeline import partition
from singanet.training import Callback
from singanet.training.callbacks import EMA, EarlyStopping, ModelCheckpoint
from tests.kit.ranks import together

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((50, 6)).astype(np.float32), RNG.integers(0, 3, 50)


class SecondClass(AUC):
    def update(self, out, y):
        super().update(out[:, 1], y == 1)


def make(*more):
    return singanet.FeedForwardNet(
        [
            Dense("a", 8, input_sample_shape=(6,)),
            *more,
            Activation("r"),
            Dense("b", 5),
            Activation("t", mode="tanh"),
            Dense("c", 3),
        ],
        loss=SoftmaxCrossEntropy(),
        seed=1,
    )


def fit(net, rule, epochs=3, samples=50, **said):
    net.compile(rule, metrics=[Accuracy(), SecondClass()])
    said |= {"validation_data": (X[:11], Y[:11]), "clip": 1.0, "clip_by": "global"}
    return net.fit(X[:samples], Y[:samples], 16, epochs, verbose=False, **said)


def expect_same_history(history, other):
    for name in other:
        if not name.startswith("bytes"):
            np.testing.assert_allclose(history[name], other[name], rtol=2e-5, err_msg=name)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_fit_is_that_of_one_process(replicas):
    alone = make()
    told = fit(alone, Adam(lr=0.01), callbacks=[EMA(0.9, keep_at_end=True), EarlyStopping()])
    evaluated = alone.evaluate(X, Y).logs

    def work(comm):
        net = make()
        pipeline = parallel.Pipeline(net, ["b"], 4, comm=comm, replicas=replicas)
        rule = Adam(lr=0.01)
        rule = rule if replicas == 1 else parallel.AllReduce(rule, pipeline.replicas)
        history = fit(net, rule, callbacks=[EMA(0.9, keep_at_end=True), EarlyStopping()])
        logs = net.evaluate(X, Y).logs
        pipeline.gather()
        return history, logs, net

    for history, logs, net in together(work, 2 * replicas):
        expect_same_history(history, told)
        assert history["bytes_sent"][0] > 0
        np.testing.assert_allclose([*logs.values()], [*evaluated.values()], rtol=2e-5)
        for value, other in zip(net.param_values(), alone.param_values(), strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-6)


class Ends(Callback):
    def on_batch_end(self, batch, logs):
        if self.session.rank == 1 and self.session.step == 6:
            self.session.stop("rank 1 has seen enough")


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_rank_0_writes_the_whole_training_which_goes_on_to_the_bit(replicas, tmp_path):
    def train(comm, *callbacks, cuts=("b",), resume=None):
        net = make(BatchNormalization("n"))
        pipeline = parallel.Pipeline(net, list(cuts), 4, comm=comm, replicas=replicas)
        rule = parallel.AllReduce(SGD(lr=0.1, momentum=0.9), pipeline.replicas)
        history = fit(net, rule, samples=48, callbacks=callbacks, resume=resume)
        pipeline.gather()
        return history, net

    whole = together(lambda comm: train(comm), 2 * replicas)
    ended = together(
        lambda comm: train(comm, Ends(), ModelCheckpoint(tmp_path, None)), 2 * replicas
    )
    assert {history.stopped for history, _ in ended} == {"rank 1 has seen enough"}
    again = together(
        lambda comm: train(comm, Callback(), ModelCheckpoint(tmp_path, None), resume=tmp_path),
        2 * replicas,
    )
    for (history, net), (told, other) in zip(again, whole, strict=True):
        expect_same_history(history, told)
        for name, value, wanted in zip(
            net.param_names(), net.param_values(), other.param_values(), strict=True
        ):
            np.testing.assert_array_equal(value, wanted, err_msg=name)
    # One process takes it up as well: the file has the parameters and momentum of all stages.
    last = max(tmp_path.glob("*.npz"), key=lambda path: path.stat().st_mtime)
    with np.load(last) as saved:
        names = {name for name in saved.files if name.startswith(("net/", "optimizer/"))}
    assert {f"net/{name}" for name in whole[0][1].param_names()} <= names
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

    def train(comm, slow, *callbacks, stages="measure", resume=None):
        Slow.slow = slow
        net = make(
            Dropout("d0", 0.4), Slow("early"), Dense("m", 6), Dropout("d1", 0.4), Slow("late")
        )
        pipeline = parallel.Pipeline(net, stages, 2, comm=comm)
        cut = dict(pipeline.places)
        net.compile(SGD(lr=0.1, momentum=0.9))
        net.fit(X, Y, 16, 3, callbacks=callbacks, resume=resume, verbose=False)
        told = dict(pipeline.places)
        pipeline.gather()
        return cut, told, net

    def ends():
        return Ends(), ModelCheckpoint(tmp_path, None)

    ((cut, told, whole), _) = together(lambda comm: train(comm, ("early",)))
    assert cut == told
    together(lambda comm: train(comm, ("early",), *ends()))
    runs = together(
        lambda comm: train(
            comm, ("late",), Callback(), ModelCheckpoint(tmp_path, None), resume=tmp_path
        )
    )
    for began, ended, net in runs:
        assert began != cut
        assert ended == cut
        for value, wanted in zip(net.param_values(), whole.param_values(), strict=True):
            np.testing.assert_array_equal(value, wanted)
    # Who says which layer where is asked first.
    own = ["m"] if cut["m"] == 0 else ["c"]
    runs = together(lambda comm: train(comm, (), *ends(), stages=own, resume=tmp_path))
    assert all(began == ended != cut for began, ended, _ in runs)


@pytest.mark.parametrize("frozen", [["a"], ["b", "c"]])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_stage_that_trains_nothing_knows_when_the_norm_is_due(frozen, when):
    """It had gathered nothing, and waited for the others' norm in the middle of a fit."""

    def freeze(net):
        for name in frozen:
            for param in net[name].params.values():
                param.trainable = False

    class Freezes(Callback):
        def on_batch_begin(self, batch):
            if self.session.step == 2:
                freeze(self.session.net)

    def train(net):
        if when == "before":
            freeze(net)
        net.compile(SGD(lr=0.1, momentum=0.9))
        said = {"clip": 0.3, "clip_by": "global", "accumulate": 2, "verbose": False}
        net.fit(X[:48], Y[:48], 12, 2, callbacks=[Freezes()], **said)
        return net

    alone = train(make())

    def work(comm):
        net = make()
        pipeline = parallel.Pipeline(net, ["b"], 2, comm=comm)
        train(net)
        pipeline.gather()
        return net

    for net in together(work):
        for value, other in zip(net.param_values(), alone.param_values(), strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("frozen", ["b", None])
def test_the_rate_told_is_that_of_what_is_trained(frozen):
    """Where stage 0 trains nothing its rule takes no steps, and its rate stood still."""

    def train(net):
        if frozen:
            net.freeze(frozen)
        net.compile(SGD(lr=lambda step: 0.5 / (1 + step)))
        return net.fit(X, Y, 16, 3, verbose=False)["lr"]

    told = train(make())

    def work(comm):
        net = make()
        parallel.Pipeline(net, ["b"], 2, comm=comm)
        return train(net)

    assert together(work) == [told, told]
    assert told[0] > told[2]


def test_ranks_that_were_given_other_data_are_told():
    def work(comm):
        net = make()
        parallel.Pipeline(net, ["b"], comm=comm)
        net.compile(SGD(lr=0.1))
        net.fit(X + comm.rank, Y, verbose=False)

    with pytest.raises(RankError, match="data"):
        together(work)
