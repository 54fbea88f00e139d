import csv
import warnings

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import singanet
from singanet import parallel
from singanet.data import ArrayLoader, GeneratorLoader, Prefetch
from singanet.errors import RankLostError
from singanet.layers import Activation, BatchNormalization, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import AUC, Accuracy
from singanet.optimizer import SGD
from singanet.optimizer.chain import UpdateChain
from singanet.params.param import ParamSpec
from singanet.testing import communicators
from singanet.training import Callback
from singanet.training.callbacks import CSVLogger

EPOCHS, STEPS = 3, 12
rng = np.random.default_rng(0)
x, y = rng.standard_normal((46, 6), np.float32), rng.integers(0, 3, 46)


class SecondClass(AUC):
    def update(self, out, y):
        super().update(out[:, 1], y == 1)


class Dies(Callback):
    """Ends its rank in the middle of a step's walk back, where some sums are under way."""

    def __init__(self, comm, at):
        self.comm, self.at = comm, at

    def on_layer_gradients(self, names, values, grads):
        if self.session.layer == "a" and self.session.step + 1 == self.at:
            self.comm.die()


def die_at(comm, number):
    """Let the rank die where it begins its all-reduce of that ``number``."""
    begin, left = comm.start_all_reduce, [number]

    def start(*arguments, **named):
        left[0] -= 1
        if not left[0]:
            comm.die()
        return begin(*arguments, **named)

    comm.start_all_reduce = start


def trained(comm, deaths=None, data=None, optimizer=parallel.AllReduce, callbacks=(), layers=(),
            compiled=None, **options):  # fmt: skip
    net = singanet.FeedForwardNet(
        [Dense("a", 16, input_sample_shape=(6,)), *(make() for make in layers), Activation("relu"),
         Dense("b", 3)], loss=SoftmaxCrossEntropy(), seed=0,
    )  # fmt: skip
    metrics = [Accuracy(), SecondClass()]
    net.compile(optimizer(SGD(lr=0.1, momentum=0.9), comm), metrics=metrics, **(compiled or {}))
    if data is None:
        options = {"batch_size": 12, **options}
    if comm.rank in (deaths or {}):
        die_at(comm, deaths[comm.rank])
    made = [make(comm) for make in callbacks]
    given = (x, y) if data is None else (data(comm),)
    history = net.fit(*given, epochs=EPOCHS, validation_data=(x[:9], y[:9]), verbose=False,
                      callbacks=made, **options)  # fmt: skip
    return net.param_values(), history


def repaired(size, deaths, **options):
    """What the ranks that are left end with."""
    with communicators(size, elastic=True) as comms, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "rank .* has died", RuntimeWarning)
        results = comms.run(lambda comm: trained(comm, deaths, **options))
    # Who is to die late may not come to that.
    assert {rank for rank, result in enumerate(results) if result is None} <= set(deaths)
    return [result for result in results if result is not None]


def as_one(found, expected):
    """Parameters, losses and metrics as one process has them: no sample was lost or came twice."""
    for mine, one in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(mine, one, atol=1e-5)
    for name in ("loss", "accuracy", "second_class", "val_loss", "val_accuracy"):
        np.testing.assert_allclose(found[1][name], expected[1][name], rtol=1e-5)
    assert found[1].epochs == list(range(EPOCHS))


@pytest.fixture(scope="module")
def alone():
    return trained(parallel.Alone())


@settings(max_examples=25, deadline=None, phases=[Phase.generate])
@given(data=st.data())
@pytest.mark.slow
def test_the_others_train_as_one_process_does_wherever_a_rank_dies(data, alone):
    size = data.draw(st.integers(2, 4), "ranks")
    dying = data.draw(st.permutations(range(size)), "who")[: data.draw(st.integers(1, size - 1))]
    deaths = {rank: data.draw(st.integers(4, 48), "where") for rank in dying}
    for found in repaired(size, deaths):
        as_one(found, alone)


@pytest.mark.parametrize(("size", "deaths"), [(2, {0: 4}), (3, {1: 21}), (4, {0: 46, 3: 30})])
def test_the_others_train_as_one_process_does(size, deaths, alone):
    left = repaired(size, deaths)
    assert len(left) == size - len(deaths)
    for found in left:
        as_one(found, alone)


@pytest.mark.parametrize("at", [1, 7, STEPS])
def test_a_death_within_the_walk_back_of_a_step_by_the_layers(at, alone):
    def work(comm):
        return trained(comm, callbacks=[lambda comm: Dies(comm, at if comm.rank == 1 else None)])

    with (
        communicators(3, elastic=True) as comms,
        pytest.warns(RuntimeWarning, match="rank '1' of 3 has died: "),
    ):
        first, none, third = comms.run(work)
    assert none is None
    as_one(first, alone)
    as_one(third, alone)


@pytest.mark.parametrize(
    ("options", "died"),
    [
        ({"accumulate": 3}, 17),
        ({"clip": 0.1, "clip_by": "global"}, 30),
        ({"optimizer": lambda rule, comm: parallel.AllReduce(rule, comm, dtype="float16")}, 21),
        ({"optimizer": lambda rule, comm: parallel.Sharded(rule, comm, smallest=50)}, 5),
        ({"optimizer": lambda rule, comm: parallel.Sharded(rule, comm, 2, smallest=50)}, 30),
    ],
)
def test_what_is_around_a_reduction_goes_on(options, died):
    expected = trained(parallel.Alone(), **options)
    found = repaired(3, {0: died}, **options)
    near = 1e-5 if "optimizer" not in options else 2e-3
    for values, _ in found:
        for mine, one in zip(values, expected[0], strict=True):
            np.testing.assert_allclose(mine, one, atol=near)


LOADERS = {
    "array": lambda comm: ArrayLoader(x, y, 12 // comm.size, rank=comm.rank, world_size=comm.size),
    "split": lambda comm: ArrayLoader(
        x, y, 12, rank=comm.rank, world_size=comm.size, split_batches=True
    ),
    "prefetch": lambda comm: Prefetch(LOADERS["array"](comm)),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_loaders_are_shared_anew(kind):
    expected = trained(parallel.Alone(), data=LOADERS[kind])
    for found in repaired(3, {1: 20}, data=LOADERS[kind]):
        as_one(found, expected)


def test_of_a_function_of_the_epoch_each_batch_is_seen_once():
    def batches(epoch):
        for k in range(11):
            yield x[k * 4 : k * 4 + 4], y[k * 4 : k * 4 + 4]

    found = repaired(3, {2: 24}, data=lambda comm: GeneratorLoader(batches, comm.rank, comm.size))
    for _, history in found:
        # What was measured is a mean over all 44 samples of an epoch.
        assert all(abs(value * 44 - round(value * 44)) < 1e-5 for value in history["accuracy"])


@pytest.mark.parametrize(
    "method",
    [
        lambda rule, comm: parallel.SparseAllReduce(rule, comm, ratio=0.1),
        lambda rule, comm: parallel.LocalSGD(rule, comm, every=2),
        lambda rule, comm: parallel.PartialUpdate(rule, comm, partitions=2),
    ],
)
def test_those_that_send_less_go_on_with_what_is_their_own(method):
    normal = [lambda: BatchNormalization("bn")]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*not sent")
        found = repaired(3, {0: 22}, optimizer=method, layers=normal)
    first, second = (values for values, _ in found)
    for mine, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(mine, other)
        assert np.isfinite(mine).all()
    assert found[0][1]["loss"] == found[1][1]["loss"]


def test_mixed_precision_goes_on_with_its_scale_and_masters():
    options = {"compiled": {"mixed_precision": "float16"}}
    expected = trained(parallel.Alone(), **options)
    for values, _ in repaired(2, {0: 25}, **options):
        for mine, one in zip(values, expected[0], strict=True):
            np.testing.assert_allclose(mine, one, atol=4e-3)


def test_who_is_first_now_writes_what_the_first_one_wrote(tmp_path):
    place = tmp_path / "log.csv"
    found = repaired(3, {0: 40}, callbacks=[lambda comm: CSVLogger(place)])
    with place.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert [float(row["loss"]) for row in rows] == found[0][1]["loss"]


def test_data_that_cannot_be_shared_anew_are_refused_at_once():
    def own_part(comm):
        return lambda epoch: [(x[comm.rank :: 3], y[comm.rank :: 3])] * 4

    with (
        communicators(3, elastic=True) as comms,
        pytest.warns(RuntimeWarning, match="each rank's own"),
        pytest.raises(RankLostError, match="the death of rank '1'"),
    ):
        comms.run(lambda comm: trained(comm, {1: 20}, data=own_part))


def test_a_communicator_that_is_not_elastic_says_so():
    with pytest.raises(singanet.errors.RankError, match="--elastic"):
        parallel.Alone().repair()


@pytest.mark.parametrize("at", [3, 8])
def test_what_callbacks_changed_in_steps_that_are_undone_is_undone(at, monkeypatch):
    """One copy alone, at the beginning: all steps before the death are done again."""
    monkeypatch.setattr("singanet.training.repair._SHARE", 1e9)

    class Freezes(Callback):
        def on_batch_begin(self, batch, logs=None):
            if self.session.step == at:
                net = self.session.net
                net["a"].trainable = False
                net["b"].params["bias"].spec = ParamSpec("b/bias", lr_mult=0.0)
                UpdateChain(net.compiled.optimizer).rule.lr = 0.01

    made = [lambda comm: Freezes()]
    expected = trained(parallel.Alone(), callbacks=made)
    for found in repaired(3, {1: 36}, callbacks=made):
        as_one(found, expected)
