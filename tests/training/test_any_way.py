"""All that holds for any way of running fit: a way is a line of `WAYS`."""

import copy
from functools import partial

import numpy as np
import pytest

from singanet.data import ArrayLoader, GeneratorLoader, Prefetch
from singanet.metric import AUC, F1, Accuracy, ConfusionMatrix
from singanet.optimizer import SGD, Adam, MixedPrecision
from singanet.parallel import AllReduce
from singanet.testing import communicators
from singanet.training import Callback
from singanet.training.callbacks import EMA, EarlyStopping, ModelCheckpoint, ReduceOnPlateau
from tests.kit.draws import drawn
from tests.kit.files import bytes_of

SIZE = 16  # 50 samples: four batches an epoch, the last of two


def forever(x, y):
    k = 0
    while True:
        rows = np.arange(k, k + 8) % 50
        yield x[rows], y[rows]
        k += 8


def batches(x, y, epoch=0):
    rows = np.roll([slice(a, a + SIZE) for a in range(0, 50, SIZE)], epoch, axis=0)
    return [(x[each], y[each]) for each in rows]


def precision():
    # The first steps overflow, later ones make the scale grow.
    return MixedPrecision(scale=2.0**30, backoff=2.0**-6, growth_interval=4)


SOURCES = {
    "loader": lambda x, y: ArrayLoader(x, y, SIZE, seed=4),
    "function": lambda x, y: lambda epoch: iter(batches(x, y, epoch)),
    "list": batches,
    "generator": lambda x, y: GeneratorLoader(lambda epoch: batches(x, y, epoch)),
    "prefetch": lambda x, y: Prefetch(GeneratorLoader(lambda epoch: batches(x, y, epoch))),
    "endless": forever,
}
WAYS = {
    "plain": {}, "Adam": {"optimizer": lambda: Adam(lr=0.01)},
    "metrics": {"metrics": lambda: [F1(), ConfusionMatrix(), AUC(average="macro")]},
    "accumulated": {"accumulate": 3, "clip": 0.5},
    "clipped by layers so far": {"clip": 0.1, "clip_by": "running"},
    "clipped by values": {"clip": 0.01, "clip_by": "value", "accumulate": 2},
    "clipped by all": {"clip": 0.3, "clip_by": "global", "accumulate": 3},
    "float16": {"precision": precision, "accumulate": 2, "clip": 0.5, "clip_by": "global"},
    "in order": {"shuffle": False, "drop_last": True},
    "weighted": {"sample_weight": np.linspace(0, 2, 50).astype("f4"), "class_weight": {1: 3.0}},
    "few steps": {"steps_per_epoch": 3}, "around": {"steps_per_epoch": 5},
    "a budget": {"memory_budget": "1GB"}, "by the layers": {"recorded": False},
    "a rank of one": {"optimizer": lambda: AllReduce(SGD(lr=0.1), communicators(1).__enter__()[0])},
    "averages": {"callbacks": lambda: [EMA(0.9)]},
    "the best": {"callbacks": lambda: [EarlyStopping(patience=1)]},
    "plateau": {"callbacks": lambda: [ReduceOnPlateau(patience=0)]},
    **{f"from a {name}": {"source": source} for name, source in SOURCES.items()},
    "from a generator, few steps": {"source": SOURCES["generator"], "steps_per_epoch": 3}
}  # fmt: skip
WAYS["from a endless"]["steps_per_epoch"] = 4


class Keep(Callback):
    """Keeps the state after each step and raises after the step ``at``."""

    _runs_last = True

    def __init__(self, at=None):
        self.at, self.states = at, {}

    def on_batch_end(self, batch, logs):
        self.states[self.session.step] = copy.deepcopy(self.session.state())
        if self.session.step == self.at:
            raise KeyboardInterrupt


@pytest.fixture(params=drawn(WAYS, 14))
def way(request, build, data):
    """Makes nets, and fits them in one way."""

    class Way:
        def __init__(self):
            self.given = dict(WAYS[request.param])
            self.optimizer = self.given.pop("optimizer", lambda: SGD(lr=0.1, momentum=0.9))
            self.metrics = self.given.pop("metrics", lambda: [Accuracy()])
            self.precision = self.given.pop("precision", lambda: None)
            self.source = self.given.pop("source", None)
            self.recorded = self.given.pop("recorded", True)
            self.more = self.given.pop("callbacks", list)
            if self.source is None:
                self.given["batch_size"] = SIZE

        def net(self, seed=0):
            net = build(seed=seed)
            net.compile(self.optimizer(), metrics=self.metrics(), mixed_precision=self.precision())
            net.programs.enabled = self.recorded
            return net

        def fit(self, net, *callbacks, epochs=3, **more):
            given = data if self.source is None else (self.source(*data),)
            return net.fit(
                *given, epochs=epochs, validation_data=data, verbose=False,
                callbacks=[*callbacks, *self.more()], **self.given, **more,
            )  # fmt: skip

    return Way()


def same_nets(one, other):
    """Parameters, draws, metrics, and what optimizer and precision keep, to the bit."""
    assert bytes_of(one) == bytes_of(other)
    assert one.rng.bit_generator.state == other.rng.bit_generator.state
    kept = []
    for net in (one, other):
        found = net.compiled.optimizer.state_dict()
        if net.compiled.precision is not None:
            found |= {**net.compiled.precision.state_dict(), "": net.compiled.precision.skipped}
        found |= {name: metric.result() for name, metric in net.compiled.metrics.items()}
        kept.append({name: np.asarray(value).tobytes() for name, value in found.items()})
    assert kept[0] == kept[1]


def test_it_goes_on_to_the_bit_from_any_step(way):
    whole, keep = way.net(), Keep()
    expected = way.fit(whole, keep)
    states = keep.states
    assert len(states) > 6
    for at in (1, 4, max(states) - 1, max(states)):
        net, again = way.net(seed=99), Keep()
        assert way.fit(net, again, resume=states[at]) == expected
        assert sorted(again.states) == [step for step in sorted(states) if step > at]
        same_nets(net, whole)


def test_an_interrupt_leaves_a_file_to_go_on_from(way, tmp_path):
    whole, net = way.net(), way.net()
    files = partial(ModelCheckpoint, tmp_path, None, every_steps=1)
    expected = way.fit(whole, Keep(), files())
    for path in tmp_path.iterdir():
        path.unlink()
    for at, resume in ((3, None), (7, tmp_path)):
        with pytest.raises(KeyboardInterrupt):
            way.fit(net, Keep(at), files(), resume=resume)
        net = way.net(seed=at)
    assert way.fit(net, Keep(), files(), resume=tmp_path) == expected
    same_nets(net, whole)
    assert way.fit(net).epochs


def test_data_are_left_alone_and_runs_are_alike(way, data):
    before = [array.tobytes() for array in data]
    one, other = way.net(), way.net()
    assert way.fit(one) == way.fit(other)
    same_nets(one, other)
    assert [array.tobytes() for array in data] == before


def test_recorded_or_by_the_layers_is_the_same(way):
    nets = way.net(), way.net()
    nets[1].programs.enabled = not way.recorded
    assert way.fit(nets[0]) == way.fit(nets[1])
    same_nets(*nets)
