"""A fit of several ranks is as true as one of one process."""

import contextlib
import copy
import json
import os
import signal
import sys
import threading
import warnings
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import singanet
from singanet.data import ArrayLoader, GeneratorLoader, Prefetch
from singanet.errors import ArgumentError, DataError, RankError, StateMismatchError
from singanet.layers import Activation, BatchNormalization, Dense, Dropout
from singanet.loss import MultiLoss, SigmoidCrossEntropy, SoftmaxCrossEntropy, SquaredError
from singanet.metric import (
    AUC,
    F1,
    R2,
    Accuracy,
    BinaryAccuracy,
    ConfusionMatrix,
    MeanMetric,
    Metric,
    Perplexity,
    RootMeanSquaredError,
)
from singanet.optimizer import SGD, Adam
from singanet.parallel import AllReduce, LocalSGD
from singanet.testing import communicators
from singanet.training import callbacks as calls
from singanet.training.callbacks import EMA, Callback, ModelCheckpoint
from singanet.training.fit import fit as fit_by
from singanet.training.options import FitOptions
from tests.kit.callbacks import at, stop_at
from tests.kit.files import bytes_of
from tests.kit.nets import values_of
from tests.kit.ranks import expect_near_values
from tests.kit.ranks import together as on_ranks

RNG = np.random.default_rng(11)
X = RNG.standard_normal((37, 5)).astype(np.float32)
Y = (X @ RNG.standard_normal((5, 3))).argmax(1)
YES = (X[:, :1] + RNG.standard_normal((37, 1)) > 0).astype(np.float32)
# Whole numbers, whose products float32 holds exactly: how many rows a product has changes no bit.
WHOLE = RNG.integers(-4, 5, (37, 5)).astype(np.float32)


def net_of(*layers, loss=None, seed=0):
    return singanet.FeedForwardNet([*layers], loss=loss or SoftmaxCrossEntropy(), seed=seed)


def plain(metrics=(), optimizer=None):
    net = net_of(Dense("a", 8, input_sample_shape=(5,)), Activation("t", "tanh"), Dense("b", 3))
    net.compile(optimizer or SGD(lr=0.2, momentum=0.9), metrics=list(metrics))
    return net


def drawing(optimizer=None, synchronized=False):
    net = singanet.FeedForwardNet(
        [
            Dense("a", 8, input_sample_shape=(5,)),
            BatchNormalization("bn", momentum=0.3, synchronized=synchronized), Activation("relu"),
            Dropout("drop", 0.4), Dense("b", 3)
        ],
        loss=SoftmaxCrossEntropy(), seed=3
    )  # fmt: skip
    net.compile(optimizer or SGD(lr=0.1, momentum=0.9), metrics=[Accuracy()])
    return net


def reduced(comm, rule=None):
    return AllReduce(rule or SGD(lr=0.2, momentum=0.9), comm)


def without_traffic(history):
    return {name: values for name, values in history.items() if not name.startswith("bytes")}


class Furthest(Metric):
    """How far an output is off at most: no sum, and so merged by its own method."""

    gathered = ("samples", "most")

    def reset(self):
        self.samples, self.most = 0, 0.0

    def update(self, x, y):
        self.samples += len(x)
        self.most = max(self.most, float(np.abs(x).max()))

    def merge(self, state):
        self.samples += state["samples"]
        self.most = max(self.most, state["most"])

    def compute(self):
        return self.most


class Secret(Metric):
    """Says nothing of what it has gathered."""

    def reset(self):
        self.samples, self.seen = 0, 0

    def update(self, x, y):
        self.samples += len(x)

    def compute(self):
        return 1.0


class Confident(MeanMetric):
    def values(self, ops, x, y):
        return x.max(axis=1).astype("float64")


class Worse(Confident):
    """Has gathered more than the class above says."""

    def reset(self):
        super().reset()
        self.worst = 0.0


class AUC_OF_CLASS(AUC):  # noqa: N801 - as a user may name it
    """Class 1 against the rest."""

    def update(self, x, y):
        super().update(x[:, 1], y == 1)


class Heard(Callback):
    def __init__(self):
        self.losses, self.epochs = [], []

    def on_batch_end(self, batch, logs):
        self.losses.append(logs["loss"])

    def on_epoch_end(self, epoch, logs):
        self.epochs.append(dict(logs))


def on(size, work):
    return on_ranks(work, size)


def alike(size, work):
    """What ``work(comm)`` returns on each of the ranks."""
    first, *others = on_ranks(work, size)
    assert all(each == first for each in others)
    return first


def fit(net, *callbacks, x=X, y=Y, **given):
    return net.fit(x, y, callbacks=callbacks, verbose=False, **given)


class By:
    """A schedule of a user's own, whose repr names an address."""

    def __init__(self, rate):
        self.rate = rate

    def __call__(self, step):
        return self.rate / (1 + step)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (1, {}), (2, {}), (5, {}), (2, {"validation_split": 0.2, "shuffle": False}),
        (3, {"sample_weight": np.linspace(0, 2, 37).astype("f")}),
        (3, {"accumulate": 3, "clip": 0.5, "clip_by": "global"}),
        (2, {"class_weight": {0: 2.0, 2: 0.5}, "drop_last": True}), (3, {"steps_per_epoch": 4}),
    ],
)  # fmt: skip
def test_arrays_are_shared_and_all_numbers_are_those_of_one_process(size, options):
    """36 of 37 samples in batches of 9 leave one, so all but one rank have an empty batch."""

    def work(optimizer):
        net, heard = plain([Accuracy(), AUC_OF_CLASS(), Furthest()], optimizer), Heard()
        given = {"validation_data": (X[:7], Y[:7])} if "validation_split" not in options else {}
        history = net.fit(X, Y, 9, 3, callbacks=[heard], verbose=False, **given, **options)
        return history, net, heard, net.evaluate(X, Y).logs

    alone, net, heard, logs = work(None)
    every = on(size, lambda comm: work(reduced(comm)))
    for history, trained, told, own in every:
        assert list(without_traffic(history)) == list(alone)
        for name, values in alone.items():
            np.testing.assert_allclose(history[name], values, rtol=1e-4, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(told.losses, heard.losses, rtol=1e-4, atol=1e-6)
        assert own == pytest.approx(logs, rel=1e-4)
        assert history == every[0][0]
        assert bytes_of(trained) == bytes_of(every[0][1])
    expect_near_values(values_of(every[0][1]), values_of(net), 1e-3, 1e-5)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 14), st.booleans(), st.integers(0, 3))
def test_every_sample_is_trained_on_and_counted_once(count, size, batch, shuffle, seed):
    seen = []

    class Sees(Callback):
        def on_batch_end(self, batch, logs):
            seen.extend(self.session.inputs[:, 1].tolist())

    def work(comm):
        net = net_of(Dense("a", 1, input_sample_shape=(2,)), loss=SquaredError(), seed=seed)
        net.compile(AllReduce(SGD(lr=0.01), comm), metrics=[RootMeanSquaredError()])
        y = np.arange(count, dtype="f")[:, None]
        x = np.concatenate([np.ones_like(y), y], axis=1)
        net.fit(x, y, batch, 2, callbacks=[Sees()], shuffle=shuffle, verbose=False)
        metric = next(iter(net.compiled.metrics.values()))
        assert metric.samples == count
        return net.evaluate(x, y).loss

    losses = on(size, work)
    assert sorted(seen) == sorted(2 * [float(k) for k in range(count)])
    assert len(set(losses)) == 1


def test_arrays_that_differ_are_refused_on_all_ranks():
    def work(comm):
        net = plain(optimizer=reduced(comm))
        with pytest.raises(RankError, match="data, x: .*on rank 0.*on rank 1.*divide them"):
            net.fit(X[comm.rank :: 2], Y[comm.rank :: 2], verbose=False)
        given = {"validation_data": (X, Y)} if comm.rank == 0 else {}
        with pytest.raises(RankError, match="validation_data.*False.*on rank 1") as raised:
            net.fit(X, Y, verbose=False, **given)
        assert "rank 0" in str(raised.value)
        with pytest.raises(RankError, match="callbacks"):
            net.fit(X, Y, callbacks=[Heard()] if comm.rank else [], verbose=False)
        return net.compiled.epochs

    assert on(2, work) == [0, 0]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda rank: {"optimizer": (SGD, Adam)[rank](lr=0.1)}, "optimizer.*SGD.*Adam.* rank 1"),
        (lambda rank: {"optimizer": SGD(lr=0.1, weight_decay=0.1 * rank)}, "weight_decay"),
        (lambda rank: {"optimizer": SGD(lr=0.1 + 0.1 * rank)}, "rate=0.1.*rate=0.2"),
        (lambda rank: {"loss": (SoftmaxCrossEntropy(), SquaredError())[rank]}, "loss.*Squared"),
        (lambda rank: {"metrics": [Accuracy()] * rank}, "metrics.*accuracy"),
        (lambda rank: {"version": str(rank)}, "version of singanet.*0.*1"),
    ],
)
def test_what_ranks_train_by_is_compared_before_anything_changes(make, told, monkeypatch):
    version = threading.local()
    monkeypatch.setattr(sys.modules["singanet.training.fit"], "VERSION", OfThread(version))

    def work(comm):
        own = make(comm.rank)
        version.text = own.get("version", "0")
        net = plain()
        before = bytes_of(net)
        rule = own.get("optimizer", SGD(lr=0.1))
        net.compile(AllReduce(rule, comm), loss=own.get("loss"), metrics=own.get("metrics"))
        with pytest.raises(RankError, match=told):
            net.fit(X, Y, verbose=False)
        assert rule.lr == (0.2 if "rate=0.2" in told and comm.rank else 0.1)
        assert bytes_of(net) == before

    on(2, work)


class OfThread:
    """A text that each rank has for itself."""

    def __init__(self, local):
        self.local = local

    def __repr__(self):
        return self.local.text


@pytest.mark.parametrize("wrap", [lambda loader: loader, Prefetch])
def test_a_loader_says_whose_it_is(wrap):
    def work(comm):
        net = plain(optimizer=reduced(comm))
        with pytest.raises(RankError, match="rank 0 of 2.*rank 0 of 1.*world_size"):
            fit(net, x=wrap(ArrayLoader(X, Y, 8)), y=None)
        own = ArrayLoader(X, Y, 4, rank=comm.rank, world_size=comm.size)
        with pytest.raises(RankError, match="rank 1 of 2"):
            fit(net, x=wrap(ArrayLoader(X, Y, 4, rank=0, world_size=2)), y=None)
        fit(net, x=wrap(own), y=None, epochs=2, validation_data=lambda epoch: own)
        with pytest.raises(DataError, match="at least one batch"):
            fit(plain(optimizer=reduced(comm)), x=lambda epoch: iter([]), y=None)
        return net.evaluate(lambda epoch: own).loss

    alike(2, work)


def test_a_users_own_loader_may_give_ranks_what_they_like():
    bounds = [0, 30, 37, 37]

    def work(comm):
        start, stop = bounds[comm.rank], bounds[comm.rank + 1]

        def batches(epoch):
            for k in range(start, stop, 4):
                yield X[k : min(k + 4, stop)], Y[k : min(k + 4, stop)]

        net, heard = plain([Accuracy(), Perplexity()], reduced(comm)), Heard()
        history = net.fit(batches, epochs=2, callbacks=[heard], verbose=False)
        assert len(heard.losses) == 2 * 8
        assert sum(metric.samples for metric in net.compiled.metrics.values()) == 2 * 37
        return history, net

    every = on(3, work)
    assert every[0][0] == every[1][0] == every[2][0]
    assert bytes_of(every[0][1]) == bytes_of(every[2][1])


@pytest.mark.parametrize(("samples", "batch", "size"), [(17, 8, 3), (7, 2, 3)])
def test_parts_of_a_loaders_batch_may_be_empty(samples, batch, size):

    def work(comm):
        net = plain([Accuracy()], reduced(comm))
        shared = {"rank": comm.rank, "world_size": comm.size, "split_batches": True}
        loader = ArrayLoader(X[:samples], Y[:samples], batch, seed=2, **shared)
        return net.fit(loader, epochs=2, verbose=False), net

    alone = plain([Accuracy()], SGD(lr=0.2, momentum=0.9))
    loader = ArrayLoader(X[:samples], Y[:samples], batch, seed=2)
    history = alone.fit(loader, epochs=2, verbose=False)
    for own, net in on(size, work):
        np.testing.assert_allclose(own["loss"], history["loss"], rtol=1e-6)
        assert own["accuracy"] == history["accuracy"]
        expect_near_values(values_of(net), values_of(alone), 0, 1e-6)


METRICS = {
    "multi": (
        lambda: [Accuracy(2), F1(), F1("weighted"), Perplexity(), Confident()],
        SoftmaxCrossEntropy, 3, Y,
    ),
    "yes": (lambda: [BinaryAccuracy(), AUC(), F1(threshold=0.4)], SigmoidCrossEntropy, 1, YES),
    "real": (lambda: [R2(), RootMeanSquaredError(), "mae"], SquaredError, 2, X[:, :2] * 3 + 100),
}  # fmt: skip


@pytest.mark.parametrize("kind", METRICS)
@pytest.mark.parametrize("size", [2, 3])
def test_metrics_are_exact_over_ranks(kind, size):
    made, loss, outputs, y = METRICS[kind]

    def work(optimizer):
        net = net_of(Dense("a", outputs, input_sample_shape=(5,)), loss=loss())
        net.compile(optimizer, metrics=made())
        weight = net.params()[0].value
        weight[...] = np.arange(weight.size).reshape(weight.shape) % 5 - 2
        return [net.evaluate(WHOLE[:n], y[:n], size).logs for n in (37, 2) for size in (None, 5)]

    alone = work(SGD(lr=0.0))
    for own in on(size, lambda comm: work(AllReduce(SGD(lr=0.0), comm))):
        for logs, expected in zip(own, alone, strict=True):
            assert logs.keys() == expected.keys()
            for name, value in expected.items():
                near = 1e-6 if name in ("loss", "perplexity") else 1e-9
                assert logs[name] == pytest.approx(value, rel=near, nan_ok=True), name


@pytest.mark.parametrize("metric", [Secret, Worse])
def test_a_metric_that_cannot_be_merged_is_refused_before_the_first_step(metric):
    def work(comm):
        net = plain([metric()], reduced(comm))
        before = bytes_of(net)
        for call in (net.fit, net.evaluate):
            with pytest.raises(ArgumentError, match=f"{metric.__name__}.*gathered"):
                call(X, Y)
        assert bytes_of(net) == before
        # What another one has after a fit is of all ranks.
        matrix = ConfusionMatrix()
        fit(plain([matrix], reduced(comm)), batch_size=8)
        return matrix.result().sum()

    assert on(3, work) == [37, 37, 37]
    fit(plain([metric()]))  # alone it is taken as ever


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("hook", ["epoch_begin", "batch_begin", "batch_end", "epoch_end"])
@pytest.mark.parametrize("way", ["stop", "raise", "interrupt"])
@pytest.mark.few(2, full=8)
def test_an_end_on_one_rank_is_one_after_the_same_step_on_all(rank, hook, way, tmp_path):
    def act(session, number, *_):
        if session.rank != rank or number != 1:
            return
        if way == "stop":
            session.stop("enough")
        else:
            stops = singanet.training.StopTraining("enough")
            raise stops if way == "raise" else KeyboardInterrupt

    def work(comm):
        net, heard = plain(optimizer=reduced(comm)), Heard()
        callbacks, stopped = [at(f"on_{hook}", act), heard, ModelCheckpoint(tmp_path)], None
        with contextlib.suppress(KeyboardInterrupt):
            stopped = fit(net, *callbacks, batch_size=9, epochs=4).stopped
            assert way != "interrupt"
        return len(heard.losses), stopped, bytes_of(net)

    first, begin = alike(3, work), 6 if way == "stop" else 5
    expected = {"epoch_begin": begin, "batch_begin": 2, "batch_end": 2, "epoch_end": 10}[hook]
    assert first[:2] == (expected, None if way == "interrupt" else "enough")
    # What was saved is where all of them stood.
    newest = max(tmp_path.glob("*.npz"), key=os.path.getmtime)
    assert json.loads(bytes(np.load(newest)["session"]))["step"] == expected
    callbacks = [Heard(), Heard(), ModelCheckpoint(tmp_path)]
    fit(plain(), *callbacks, batch_size=9, epochs=3, resume=tmp_path)


def test_an_interrupt_while_a_loader_draws_ends_all_ranks():
    def work(comm):
        def batches(epoch):
            for k in range(6):
                if comm.rank == 1 and k == 3:
                    raise KeyboardInterrupt
                yield X[:4], Y[:4]

        net, heard = plain(optimizer=reduced(comm)), Heard()
        with pytest.raises(KeyboardInterrupt):
            fit(net, heard, x=batches, y=None)
        return len(heard.losses)

    assert on(3, work) == [3, 3, 3]


def test_the_signal_of_an_interrupt_waits_for_the_end_of_the_step():
    before, steps = signal.getsignal(signal.SIGINT), []

    def work(comm):
        class Interrupts(Callback):
            def on_layer_gradients(self, names, values, grads):
                if comm.rank == 0 and self.session.step == 2 and self.session.layer == "b":
                    os.kill(os.getpid(), signal.SIGINT)

            def on_batch_end(self, batch, logs):
                steps.append((comm.rank, batch))

        with pytest.raises(KeyboardInterrupt):
            fit(plain(optimizer=reduced(comm)), Interrupts(), batch_size=6)

    with communicators(2) as comms:
        other = threading.Thread(target=work, args=(comms[1],))
        other.start()
        work(comms[0])
        other.join()
    assert sorted(steps) == [(rank, batch) for rank in range(2) for batch in range(3)]
    assert signal.getsignal(signal.SIGINT) is before


def test_an_end_within_a_step_is_an_error():

    def work(comm):
        x = X.copy()
        if comm.rank:
            x[20:] = np.nan
        net = plain(optimizer=reduced(comm))
        loader = ArrayLoader(x, Y, 4, rank=comm.rank, world_size=2)
        net.fit(loader, callbacks=[calls.StopOnNaN()], verbose=False)

    with pytest.raises(RankError, match="StopOnNaN.*between two steps"):
        on(2, work)


def test_early_stopping_plateaus_and_averages_are_alike_on_all_ranks():
    def work(comm):
        net, ema = drawing(reduced(comm, SGD(lr=0.5)), True), EMA(0.8, keep_at_end=False)
        watch = calls.EarlyStopping(patience=1), calls.ReduceOnPlateau(patience=0)
        given = {"batch_size": 8, "epochs": 12, "validation_data": (X[:9], Y[:9])}
        history = fit(net, ema, *watch, **given)
        averages = {name: value.tobytes() for name, value in ema.averages.items()}
        return history, history.stopped, bytes_of(net), averages

    alike(3, work)


@pytest.mark.parametrize("synchronized", [True, False])
def test_means_of_epochs_are_alike_on_all_ranks(synchronized):
    def work(comm):
        net, swa = drawing(reduced(comm), synchronized), calls.SWA(1)
        fit(net, swa, batch_size=8, epochs=3, drop_last=True)
        return bytes_of(net), swa.epochs

    assert alike(3, work)[1] == 2


def test_only_rank_0_prints_and_writes(tmp_path, capsys):

    def looks(session, epoch, _):
        with (tmp_path / "own").open("a") as file:
            file.write(f"{epoch}\n")
        sys.stdout.write(f"epoch {epoch}\n")
        session.net.evaluate(X, Y)

    class Sees(Callback):
        def on_epoch_end(self, epoch, logs):
            logs["seen"] = self.session.net.evaluate(X, Y, 8).loss

    def work(comm):
        net = plain([Accuracy()], reduced(comm))
        log = calls.CSVLogger(tmp_path / "log.csv")
        callbacks = [at("on_epoch_end", looks, first_rank_only=True), Sees(), log]
        given = {"batch_size": 9, "epochs": 2, "validation_data": (X, Y)}
        return net.fit(X, Y, callbacks=callbacks, **given), net.evaluate(X, Y).loss

    every = on(3, work)
    assert (tmp_path / "own").read_text("utf-8") == "0\n1\n"
    assert len((tmp_path / "log.csv").read_text("utf-8").splitlines()) == 3
    said = capsys.readouterr()
    assert said.out == "epoch 0\nepoch 1\n"
    assert said.err.count("epoch 1/2") == said.err.count("epoch 2/2") == 1
    assert every[0][0] == every[1][0]
    assert every[0][0]["seen"] == pytest.approx(every[0][0]["val_loss"])
    assert every[0][0]["seen"][-1] == pytest.approx(every[2][1])


def test_bytes_a_step_are_in_the_history():
    history = on(2, lambda comm: fit(plain(optimizer=reduced(comm)), batch_size=9, epochs=2))[1]
    values = 4 * sum(array.size for array in plain().param_values())
    for name in ("bytes_sent", "bytes_received"):
        # The gradients, what goes with them, and in the first epoch the values of rank 0.
        assert all(values <= each <= 6 * values for each in history[name]), history[name]
    assert history["bytes_sent"][0] > history["bytes_sent"][1]


def test_running_state_is_that_of_all_samples():

    def work(comm):
        statistics = BatchNormalization("bn", momentum=1.0, input_sample_shape=(5,))
        net = net_of(statistics, Dense("d", 3))
        net.compile(AllReduce(SGD(lr=0.0), comm))
        own = slice(0, 10) if comm.rank == 0 else slice(10, 37)
        net.fit(lambda epoch: [(X[own], Y[own])], verbose=False)
        return net["bn"].params["mean"].value, net["bn"].params["var"].value

    x = X.astype(np.float64)
    parts = [x[:10], x[10:]]
    means = np.stack([part.mean(0) for part in parts])
    mean = x.mean(0)
    shares = np.array([10, 27]) / 37
    spreads = np.stack([part.var(0, ddof=1) for part in parts]) + (means - mean) ** 2
    for found_mean, found_var in on(2, work):
        np.testing.assert_allclose(found_mean, mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found_var, shares @ spreads, rtol=1e-4)


def test_ranks_draw_apart_and_runs_alike():
    def work(comm):
        net = drawing(reduced(comm, SGD(lr=0.1)))
        fit(net, batch_size=12, epochs=2, drop_last=True)
        return bytes_of(net), repr(net.rng.bit_generator.state)

    first = on(3, work)
    assert len({state for _, state in first}) == 3
    assert on(3, work) == first


def test_parameters_that_differ_are_found_at_a_checkpoint(tmp_path):
    def changes(session, epoch):
        if session.rank and epoch == 1:
            session.net["b"].params["bias"].value[0] += 1

    def work(comm):
        files = ModelCheckpoint(tmp_path)
        with pytest.raises(RankError, match="'b/bias'.*rank 1 than on rank 0"):
            fit(plain(optimizer=reduced(comm)), at("on_epoch_begin", changes), files, epochs=2)

    on(2, work)
    assert [path.name for path in tmp_path.glob("epoch*")] == ["epoch-0001.npz"]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("kind", "stop"), [("arrays", 3), ("arrays", 5), ("loader", 8), ("generator", 8)]
)
def test_a_resumed_training_is_the_same_to_the_bit(kind, stop, tmp_path):

    def epoch_of(loader, epoch):
        loader.set_epoch(epoch)
        return list(loader)

    def run(folder, resume, *more):
        def work(comm):
            x, y = X, Y
            if kind == "loader":
                x, y = ArrayLoader(X, Y, 4, rank=comm.rank, world_size=2, seed=5), None
            elif kind == "generator":
                whole = ArrayLoader(X[:36], Y[:36], 4, seed=5)
                x, y = GeneratorLoader(lambda epoch: epoch_of(whole, epoch), comm.rank, 2), None
            net, files = drawing(reduced(comm, Adam(lr=0.01))), ModelCheckpoint(tmp_path / folder)
            given = {"batch_size": 8, "epochs": 3, "resume": resume}
            history = fit(net, EMA(0.9), files, *more, x=x, y=y, **given)
            return bytes_of(net), net.rng.bit_generator.state, without_traffic(history)

        return on(2, work)

    whole = run("whole", None)
    run("cut", None, stop_at(stop))
    # Callbacks are those that were saved; the one that stops has nothing to keep.
    for (*a, history), (*b, other) in zip(whole, run("cut", tmp_path / "cut"), strict=True):
        assert a == b
        for name, values in history.items():
            np.testing.assert_allclose(other[name], values, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2), (4, 2)])
def test_other_numbers_of_ranks_go_on_exactly_in_order(before, after, tmp_path):
    order, names, x = [], np.arange(37), X.copy()
    x[:, 0] = names / 37
    sees = at("on_batch_end", lambda session, *_: order.extend(session.inputs[:, 0].tolist()))

    def trained(size, folder, resume=None, more=()):
        def work(comm):
            net = net_of(Dense("b", 37, input_sample_shape=(5,)))
            net.compile(reduced(comm), metrics=[Accuracy()])
            callbacks = [ModelCheckpoint(tmp_path / folder), copy.copy(sees), *more]
            given = {"batch_size": 9, "epochs": 3, "resume": resume}
            return fit(net, *callbacks, x=x, y=names, **given), values_of(net)

        return on(size, work)[-1]

    history, values = trained(1, "alone")
    alone, order[:] = list(order), []
    trained(before, "cut", more=[stop_at(7)])
    other, again = trained(after, "cut", tmp_path / "cut")
    for epoch in range(3):
        for start, end in pairwise([*range(0, 37, 9), 37]):
            part = slice(37 * epoch + start, 37 * epoch + end)
            assert sorted(order[part]) == sorted(alone[part])
    for name, wanted in without_traffic(history).items():
        np.testing.assert_allclose(other[name], wanted, rtol=1e-5, err_msg=name)
    expect_near_values(again, values, 1e-4, 1e-6)


def test_a_position_that_says_nothing_to_other_ranks_is_refused(tmp_path):
    class Own:
        def __iter__(self):
            return islice(iter(ArrayLoader(X, Y, 4)), 3)

    def work(comm, resume=tmp_path):
        files = ModelCheckpoint(tmp_path)
        fit(plain(optimizer=reduced(comm)), files, x=Own(), y=None, epochs=2, resume=resume)

    on(2, lambda comm: work(comm, None))
    on(2, work)
    with pytest.raises(StateMismatchError, match="2 ranks"):
        on(3, work)


def test_only_rank_0_reads_what_is_resumed(tmp_path):
    def work(comm, epochs=2, folder=tmp_path):
        given = {} if epochs == 1 else {"resume": folder if comm.rank == 0 else tmp_path / "none"}
        files = ModelCheckpoint(tmp_path)
        return fit(plain(optimizer=reduced(comm)), files, epochs=epochs, **given)

    on(2, lambda comm: work(comm, 1))
    assert alike(2, work).epochs == [0, 1]

    def missing(comm):
        expected = singanet.errors.FileAccessError if comm.rank == 0 else RankError
        with pytest.raises(expected):
            work(comm, folder=tmp_path / "none")

    on(2, missing)


@pytest.mark.few(3, full=4)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("precision", [None, "float16"])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_micro_batches_of_several_ranks_are_whole_batches_of_one(parts, precision, ranks):

    def train(comm=None, micro_batch=None):
        x = singanet.Input("x", (5,))
        h = Activation("t", "tanh")(Dense("a", 8)(x))
        made = [Dense("b", 3)(h), Dense("c", 1)(h)]
        loss = MultiLoss({"b": SoftmaxCrossEntropy(), "c": SigmoidCrossEntropy()})
        net = singanet.FeedForwardNet(loss, inputs=[x], outputs=made, seed=0)
        rule = SGD(lr=0.2, momentum=0.9)
        net.compile(
            rule if comm is None else AllReduce(rule, comm),
            metrics={"c": BinaryAccuracy()},
            mixed_precision=precision,
        )
        said = {"clip": 0.1, "clip_by": "global", "verbose": False}
        options = FitOptions(X, {"b": Y, "c": YES}, 10, 2, **said).in_parts(micro_batch)
        return fit_by(net, options), values_of(net)

    told, values = train()
    with communicators(ranks) as comms:
        for history, found in comms.run(lambda comm: train(comm, parts)):
            for name in ("loss", "b_loss", "c_loss", "c_binary_accuracy"):
                near = 1e-3 if precision else 1e-5
                np.testing.assert_allclose(history[name], told[name], rtol=near)
            expect_near_values(found, values, 1e-7, 2e-3 if precision else 2e-6)


@pytest.mark.parametrize("lr", [lambda: lambda step: 0.1, lambda: By(0.1)])
def test_schedules_of_ones_own_and_scales_that_differ_are_no_difference(lr):

    def work(comm):
        net = plain(optimizer=reduced(comm, SGD(lr=lr())))
        mixed = plain()
        mixed.compile(LocalSGD(SGD(lr=0.1), comm), mixed_precision="float16")
        mixed.compiled.precision.scale = 2.0 ** (10 + comm.rank)
        return fit(net)["loss"], fit(mixed)["loss"]

    alike(2, work)


def test_rates_are_those_of_rank_0():

    def work(comm):
        def random(session, batch):
            session.rule.lr = 0.01 * (1 + comm.rank + batch)

        def lowers(by):
            return lambda session, *_: setattr(session.rule, "lr", session.rule.lr * by)

        net = plain(optimizer=reduced(comm))
        rates = calls.LearningRate(lambda epoch: 0.1 + comm.rank)
        history = fit(net, rates, at("on_batch_begin", random), batch_size=9, epochs=2)
        assert history["lr"] == [0.05, 0.05]
        found = [bytes_of(net), net.compiled.optimizer.optimizer.lr]
        for hook, by, wanted in (("on_epoch_end", 0.5, 0.05), ("on_batch_end", 0.9, 0.2 * 0.9**10)):
            net = plain(optimizer=reduced(comm, SGD(lr=0.2)))
            for _ in range(2):
                fit(net, at(hook, lowers(by), first_rank_only=True), batch_size=8)
            assert net.compiled.optimizer.optimizer.lr == pytest.approx(wanted)
            found.append(bytes_of(net))
        return found

    alike(2, work)


def test_a_rank_without_samples_warns_of_nothing():
    def work(comm):
        given = {"x": X[:10], "y": Y[:10], "batch_size": 4, "epochs": 2}
        return fit(drawing(reduced(comm), True), **given)["loss"]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(alike(3, work)).all()
