"""Fits within a budget: the losses of the plain run, and what the system says they took."""

import io
import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

import singanet
from singanet.budget import fitting
from singanet.data import ArrayLoader
from singanet.errors import ArgumentError, CallOrderError, DataError, FileAccessError
from singanet.layers import Activation, BatchNormalization, Dense, TimeDistributed
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Adam, ElementWise, FactoredAdam
from singanet.parallel import AllReduce, SparseAllReduce
from singanet.testing import communicators
from singanet.training.callbacks import EMA, Callback, MemoryCheck, ModelCheckpoint
from singanet.training.fit import fit
from singanet.training.options import FitOptions

SAMPLES = 44
"""No multiple of any batch below, so that last batches and last parts are smaller."""


class Signs(ElementWise):
    """A user's rule."""

    def _scalars(self, state, rate):
        return (rate,)

    def _rule(self, xp, w, g, arrays, s, *numbers):
        xp.sign(g, out=s)
        xp.multiply(s, numbers[0], out=s)
        xp.subtract(w, s, out=w)


class Steps(Callback):
    """A user's callback."""

    def __init__(self):
        self.batches, self.losses = [], []

    def on_batch_end(self, batch, logs):
        self.batches.append(batch)
        self.losses.append(logs["loss"])


def chain(optimizer, norm=False, depth=6, width=32):
    layers = [Dense("fc0", width, input_sample_shape=(16,))]
    for k in range(1, depth):
        layers += [BatchNormalization(f"norm{k}")] if norm else []
        layers += [Activation(f"tanh{k}", "tanh"), Dense(f"fc{k}", width)]
    layers.append(Dense("top", 3))
    net = singanet.FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=0)
    net.compile(optimizer, metrics="accuracy")
    return net


def data():
    rng = np.random.default_rng(0)
    return rng.standard_normal((SAMPLES, 16), np.float32), rng.integers(0, 3, SAMPLES)


def values_of(net):
    return np.concatenate([value.ravel() for value in net.param_values()])


def trained(make, budget=None, norm=False, **arguments):
    net, steps = chain(make(), norm), Steps()
    if budget is not None:
        arguments["memory_budget"] = budget
    given = {"batch_size": 16, "epochs": 3, "callbacks": [steps], "verbose": False}
    history = net.fit(*data(), **given, **arguments)
    return history, steps, values_of(net), net


def least_of(error):
    """The smallest budget that the error names."""
    return int(error.advice.split()[2].rstrip(",;"))


def refused(make, **arguments):
    """The smallest budget that the fit would accept."""
    with pytest.raises(ArgumentError, match="net.fit, memory_budget: expected at least") as caught:
        trained(make, 1, **arguments)
    return least_of(caught.value)


@pytest.mark.parametrize("make", [lambda: SGD(lr=0.1, momentum=0.9), lambda: Adam(lr=0.01)])
def test_recomputing_gives_the_same_bits(make):
    plain = trained(make, norm=True)
    within = trained(make, refused(make, norm=True), norm=True)
    assert plain[0]["loss"] == within[0]["loss"]
    assert np.array_equal(plain[2], within[2])
    assert within[3].programs.recompute == "none"
    assert not within[3].programs.at_once


@pytest.mark.parametrize("make", [lambda: SGD(lr=0.1, momentum=0.9), lambda: Signs(lr=1e-3)])
def test_micro_batches_give_the_same_losses_and_steps(make):
    plain = trained(make, validation_split=0.25)
    budget = refused(make, allow=("micro-batches",), validation_split=0.25)
    within = trained(make, budget, allow=("micro-batches",), validation_split=0.25)
    assert within[1].batches == plain[1].batches
    np.testing.assert_allclose(within[1].losses, plain[1].losses, rtol=1e-6)
    for name in ("loss", "accuracy", "val_loss"):
        np.testing.assert_allclose(within[0][name], plain[0][name], rtol=1e-6)


@pytest.mark.parametrize("way", [AllReduce, partial(SparseAllReduce, ratio=1.0)])
def test_each_of_several_ranks_keeps_the_budget_for_its_part(way):
    def train(budget, comm):
        net = chain(way(SGD(lr=0.1, momentum=0.9), comm))
        said = {"allow": ("micro-batches",), "memory_budget": budget}
        history = net.fit(*data(), 16, 3, verbose=False, **said)
        return history["loss"], values_of(net)

    history, _, values, _ = trained(lambda: SGD(lr=0.1, momentum=0.9))
    with communicators(2) as comms, pytest.raises(ArgumentError, match="at least") as caught:
        comms.run(partial(train, 1))
    assert "for batches of 8, which takes" in str(caught.value)
    for budget in (least_of(caught.value), "1GB"):
        with communicators(2) as comms:
            for losses, found in comms.run(partial(train, budget)):
                np.testing.assert_allclose(losses, history["loss"], rtol=1e-5)
                np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-6)


class Rows:
    """Batches of rows that are as long as they say, or say nothing."""

    batch_size = 8

    def __init__(self, length=None):
        if length is not None:
            self.length = length

    def __iter__(self):
        return iter(())


def test_sequences_of_any_length_are_planned_at_the_longest_or_as_a_loader_says():
    def told(*source, **options):
        part = TimeDistributed("td", Dense("fc", 32), input_sample_shape=(-1, 16))
        net = singanet.FeedForwardNet([part], loss=SoftmaxCrossEntropy(), seed=0)
        net.compile(SGD(lr=0.1))
        with pytest.raises(ArgumentError, match="memory_budget: expected") as caught:
            net.fit(*source, memory_budget=1, allow=(), verbose=False, **options)
        return caught.value.expected

    def least(*source, **options):
        return int(told(*source, **options).split()[2].replace(",", ""))

    def arrays(steps):
        return np.zeros((8, steps, 16), np.float32), np.zeros((8, steps), np.int64)

    # The outputs alone are 8 samples of 32 floats a step.
    assert least(*arrays(200), 8) - least(*arrays(20), 8) >= 180 * 8 * 32 * 4
    assert least(Rows(200)) - least(Rows(20)) >= 180 * 8 * 32 * 4
    assert told(Rows()).startswith("arrays or a loader with a length")


def test_a_batch_of_validation_waits_beside_that_of_training():
    make = lambda: SGD(lr=0.1)  # noqa: E731
    more = refused(make, validation_data=data()) - refused(make)
    x, y = data()
    assert more == 16 * (x[0].nbytes + y.itemsize)


def test_batches_of_a_loader_fit_within_a_budget():
    x, y = data()

    def losses(**arguments):
        net, steps = chain(SGD(lr=0.1)), Steps()
        loader = ArrayLoader(x, y, 16)
        net.fit(loader, epochs=2, callbacks=[steps], verbose=False, **arguments)
        return steps.losses

    assert losses(memory_budget="1GB") == losses()


class Stream:
    """Batches that can be gone through once, whoever asks for them."""

    def __init__(self, batches):
        self.left = iter(batches)

    def __iter__(self):
        return self.left


@pytest.mark.parametrize("source",
    [list, iter, Stream, lambda batches: lambda epoch: iter(batches)])  # fmt: skip
def test_batches_of_any_source_are_planned_at_their_own_size(source):
    x, y = data()
    batches = [(x[k : k + 16], y[k : k + 16]) for k in range(0, SAMPLES, 16)]

    def fitted(batches, **arguments):
        net, steps = chain(SGD(lr=0.1)), Steps()
        net.fit(source(batches), callbacks=[steps], verbose=False, **arguments)
        return steps.losses

    assert fitted(batches, memory_budget="1GB") == fitted(batches)
    with pytest.raises(ArgumentError, match="for batches of 16, which takes"):
        fitted(batches, memory_budget=1)
    if source is list:
        # All are seen before, in any order.
        assert fitted(batches[::-1], memory_budget="1GB") == fitted(batches[::-1])
        return
    with pytest.raises(DataError, match=r"at most 12 samples.*received a batch of 16") as caught:
        fitted(batches[::-1], memory_budget="1GB")
    assert "largest" in caught.value.advice


def test_parts_weigh_by_their_samples():
    # By the formula: a step of SGD is the mean gradient of the whole batch, here of 5 samples.
    net, other, (x, y) = chain(SGD(lr=0.5)), chain(SGD(lr=0.5)), data()
    other.step(x[:5], y[:5], SGD(lr=0.5))
    fit(net, FitOptions(x[:5], y[:5], 5, shuffle=False, verbose=False).in_parts(2))
    np.testing.assert_allclose(values_of(net), values_of(other), rtol=1e-5, atol=1e-7)


def test_averages_of_the_parameters_move_once_a_batch():
    def averaged(micro_batch):
        net, ema = chain(SGD(lr=0.1)), EMA(0.9, keep_at_end=True)
        options = FitOptions(*data(), 16, callbacks=[ema], verbose=False)
        fit(net, options.in_parts(micro_batch))
        return values_of(net)

    np.testing.assert_allclose(averaged(4), averaged(None), rtol=1e-5, atol=1e-6)


def test_it_says_what_was_chosen_and_how_far_the_prediction_was_off(capsys):
    chain(SGD(lr=0.1)).fit(*data(), batch_size=16, memory_budget="1GB")
    told = capsys.readouterr().err
    for words in ("batches of 16 within 1.00 GB: as it is", "memory: ", "predicted"):
        assert words in told


def test_what_stands_around_the_steps_is_counted(tmp_path):
    class Holds(Callback):
        memory_bytes = 50_000_000

    def least(*callbacks):
        net = chain(Adam(lr=0.1), depth=2)
        with pytest.raises(ArgumentError) as caught:
            net.fit(*data(), 1, callbacks=callbacks, memory_budget=1, verbose=False)
        return least_of(caught.value)

    sizes = [value.nbytes for value in chain(Adam(lr=0.1), depth=2).param_values()]
    bare = least()
    assert least(Holds()) == bare + 50_000_000
    assert least(ModelCheckpoint(tmp_path)) == bare + max(sizes)
    assert least(EMA()) == bare + sum(sizes)


def test_nothing_has_changed_where_a_budget_is_refused():
    net = chain(SGD(lr=0.1))
    before = values_of(net)
    for budget in ("12", -1, "3kB"):
        with pytest.raises(ArgumentError, match="memory_budget"):
            net.fit(*data(), batch_size=2, memory_budget=budget)
    np.testing.assert_array_equal(values_of(net), before)
    assert net.programs.recompute == "none"


@pytest.mark.few(1, full=0)
@pytest.mark.parametrize("way", ["as it is", "recompute", "micro-batches"])
def test_mixed_precision_within_a_budget(way):
    x, y = data()

    def made():
        net = chain(Adam(lr=0.01), depth=12, width=64)
        net.compile(Adam(lr=0.01), mixed_precision="float16")
        return net, net.compiled.scaled(net.compiled.optimizer)

    net, optimizer = made()
    masters = 2 * sum(value.nbytes for value in net.param_values())
    table = {each.name.split(" of ")[0]: each for each in net.plan(48, optimizer).table}
    assert table["as it is"].parts["other"] >= masters
    assert table["as it is"].parts["optimizer state"] == 2 * masters
    plain, within = made()[0], made()[0]
    usual = plain.fit(x, y, batch_size=44, epochs=3, verbose=False)
    allow = () if way == "as it is" else (way,)
    # Less than the way before takes, where there is one.
    budget = "1GB" if way == "as it is" else net.plan(44, optimizer, allow=allow).table[-1].peak
    given = {"memory_budget": budget + 200_000 if allow else budget, "allow": allow}
    found = within.fit(x, y, batch_size=44, epochs=3, verbose=False, **given)
    if way == "micro-batches":
        np.testing.assert_allclose(found["loss"], usual["loss"], rtol=2e-3)
    else:
        assert found == usual
        for one, two in zip(within.param_values(), plain.param_values(), strict=True):
            np.testing.assert_array_equal(one, two)


def test_the_check_measures_what_a_callback_takes():
    class Greedy(Callback):
        def on_batch_end(self, batch, logs):
            self.kept = vars(self).get("kept", np.zeros(0)) if batch else np.ones(100_000_000, "u1")

    net, stream = chain(SGD(lr=0.1)), io.StringIO()
    x, y = data()
    net.fit(x, y, verbose=False)
    check = MemoryCheck(1_000_000, budget=2_000_000, stream=stream)
    net.fit(x, y, epochs=2, initial_epoch=1, callbacks=[Greedy(), check], verbose=False)
    # A heap that other tests have left may have room for the rest of the fit.
    assert 94e6 <= check.measured <= 120e6
    assert check.off == 1_000_000 - check.measured
    assert "above the budget of 2.0 MB" in stream.getvalue()


def test_what_of_the_net_is_there_already_counts_in_the_budget(monkeypatch):
    monkeypatch.setattr(fitting, "held_bytes", lambda device: 10**9)
    net, adam = chain(Adam(lr=0.1)), Adam(lr=0.1)
    assert fitting._bytes_without(net, adam) == 10**9  # nothing of it is filled
    params = sum(value.nbytes for value in net.param_values())
    assert fitting._bytes_without(net, adam) == 10**9 - params
    x, y = data()
    net.step(x, y, adam)
    assert fitting._bytes_without(net, adam) == 10**9 - params - 2 * params
    monkeypatch.setattr(fitting, "held_bytes", lambda device: None)
    assert fitting._bytes_without(net, adam) is None


def test_a_net_goes_to_its_folder_where_nothing_else_is_enough(tmp_path):
    def made():
        net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
        net.add(Dense("fc0", 320, input_sample_shape=(16,)))
        for k in range(1, 6):
            net.add(Dense(f"fc{k}", 320))
        net.add(Dense("top", 3))
        net.compile(Adam(lr=0.01))
        return net

    def run(net, **arguments):
        return net.fit(*data(), batch_size=16, epochs=2, verbose=False, **arguments)

    plain, net, folder = made(), made(), tmp_path / "net"
    wanted = run(plain)
    with pytest.raises(ArgumentError, match="and an offload_folder") as caught:
        run(net, memory_budget=1, allow=())
    least = int(str(caught.value).split(", or ")[1].split()[0])
    assert not folder.exists()
    assert run(net, memory_budget=least, allow=(), offload_folder=folder) == wanted
    assert net.executor.shelf.peak <= 3 * 4 * 320 * 320
    for own, other in zip(net.params(), plain.params(), strict=True):
        assert np.array_equal(own.peek(), other.value)
    with pytest.raises(CallOrderError, match="offloaded"):
        run(net, memory_budget=least)
    net.onload()
    with pytest.raises(FileAccessError, match="resume=True"):
        run(made(), memory_budget=least, allow=(), offload_folder=folder)


def test_state_of_less_size_only_where_it_is_allowed():
    net, other = (chain(rule(lr=0.01), depth=3, width=256) for rule in (Adam, FactoredAdam))
    same = {"batch_size": 4, "clip": 0.5, "shuffle": False, "verbose": False}
    with pytest.raises(ArgumentError, match="takes light state") as caught:
        net.fit(*data(), memory_budget=1, allow=("light state",), **same)
    less = int(caught.value.advice.split()[2].rstrip(",;"))
    for allow in ((), ("recompute",)):
        with pytest.raises(ArgumentError):
            net.fit(*data(), memory_budget=less, allow=allow, **same)
    assert type(net.compiled.optimizer) is Adam
    net.fit(*data(), memory_budget=less, allow=("light state",), **same)
    other.fit(*data(), **same)
    assert type(net.compiled.optimizer) is FactoredAdam
    assert all(map(np.array_equal, net.param_values(), other.param_values()))


PROGRAM = """
import json, sys
import numpy as np
import singanet
from singanet.models import build
from singanet.optimizer import Adam, SGD
from singanet.training.callbacks import Callback
from singanet.base.heap import private_bytes
rng = np.random.default_rng(0)
x, y = rng.standard_normal((24, 1, 28, 28), np.float32), rng.integers(0, 10, 24)
warm = build("mlp", seed=0)
warm.compile(SGD(lr=0.1))
warm.fit(x[:8], y[:8], memory_budget="1GB", verbose=False)
net = build("lenet", seed=0)
net.compile(Adam(lr=1e-3))
try:
    net.fit(x, y, batch_size=16, memory_budget=1, verbose=False)
except singanet.errors.ArgumentError as error:
    least = int(error.advice.split()[2].rstrip(",;"))
del net
net = build("lenet", seed=0)
net.compile(Adam(lr=1e-3))
before = private_bytes()
seen = []
class Look(Callback):
    def on_batch_end(self, batch, logs):
        seen.append(private_bytes())
net.fit(x, y, batch_size=16, memory_budget=least, callbacks=[Look()], verbose=False)
print(json.dumps({"least": least, "peak": max(seen) - before}))
"""


CHOICES = """
import json
import numpy as np
import singanet
from singanet.models import build
from singanet.optimizer import SGD
rng = np.random.default_rng(0)
x, y = rng.standard_normal((16, 3, 32, 32), np.float32), rng.integers(0, 10, 16)
net, sgd = build("resnet20", seed=0), SGD(lr=0.1)
whole = net.plan(16, sgd, "1GB").peak
plan = net.plan(16, sgd, int(0.8 * whole))
again = net.plan(16, sgd, int(0.8 * whole)).peak
program = net.record(x, y, sgd, recompute=plan.chosen.recompute)
arena = program.report().layout.nbytes
print(json.dumps([whole, plan.peak, again, plan.chosen.parts["arena"], arena]))
"""


@pytest.mark.slow
def test_a_plan_is_of_the_choices_of_kernels_that_the_net_runs_with(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("SINGANET_ROUTES", None)
    told = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", CHOICES],
                env=environment, capture_output=True, text=True, check=True,
            ).stdout
        )
        for _ in range(3)
    ]  # fmt: skip
    for _, peak, again, planned, recorded in told:
        assert peak == again
        # With labels the loss has its own arrays in it.
        assert abs(planned - recorded) <= 0.01 * recorded
    # The first one also has in memory what it measures and compiles with. Pages of the kernels'
    # libraries are counted, of which there may be one more.
    assert told[1][3:] == told[2][3:]
    np.testing.assert_allclose(told[1][:3], told[2][:3], rtol=0.01)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="the system does not say")
def test_the_smallest_budget_is_kept_in_running():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert told["peak"] <= 1.01 * told["least"]
    # Nothing of the refusal stayed that the fit could have used.
    assert told["peak"] > 0.5 * told["least"]
