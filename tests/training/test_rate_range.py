import itertools
import math

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.data import ArrayLoader
from singanet.errors import ArgumentError, BackendError, CallOrderError
from singanet.layers import Dense
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD, Adam, BlockCoordinate, ElementWise
from singanet.optimizer.schedules import Exponential
from singanet.training import RateRange
from tests.charts import NEEDED, images, lines, texts


def state_of(optimizer):
    return {key: value.copy() for key, value in optimizer.state_dict().items()}


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


def range_of(curve):
    return RateRange(np.geomspace(1e-4, 1.0, len(curve)).tolist(), curve)


class Sums(ElementWise):
    """A rule of a user's own."""

    slots = ("sum",)

    def _scalars(self, state, rate):
        return (rate,)

    def _rule(self, xp, w, g, arrays, s, *numbers):
        arrays[0] += g
        w -= numbers[0] * arrays[0]


RULES = {
    "SGD": SGD, "Adam": Adam, "nesterov": lambda lr: SGD(lr=lr, momentum=0.9, nesterov=True),
    "own": Sums, "blocks": lambda lr: BlockCoordinate(SGD(lr=lr), steps=2),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "precision"),
    [*((name, None) for name in RULES), ("SGD", "float16"), ("SGD", "bfloat16")])  # fmt: skip
def test_everything_is_as_it_was_to_the_bit(build, data, same, rule, precision):
    nets = build(), build()
    for net in nets:
        try:
            net.compile(RULES[rule](lr=0.05), mixed_precision=precision)
        except BackendError as error:
            pytest.skip(str(error))
        net.fit(*data, batch_size=10, epochs=2, verbose=False)
    tried, optimizer = nets[0], nets[0].compiled.optimizer
    before, rate = state_of(optimizer), getattr(optimizer, "lr", None)
    found = tried.find_lr(*data, batch_size=10, steps=30)
    assert (getattr(optimizer, "lr", None), tried.compiled.epochs) == (rate, 2)
    assert equal(state_of(optimizer), before)
    same(*nets)
    histories = [net.fit(*data, batch_size=10, epochs=2, verbose=False) for net in nets]
    assert histories[0] == histories[1]
    same(*nets)
    assert len(found.rates) == len(found.losses) > 3


def test_a_net_that_has_never_trained_is_as_new(build, data, same):
    tried, other = build(), build()
    first = tried.find_lr(*data, batch_size=10, steps=20)
    assert tried.compiled.optimizer.state_dict() == {}
    assert tried.find_lr(*data, batch_size=10, steps=20) == first
    for net in (tried, other):
        net.fit(*data, batch_size=10, epochs=2, verbose=False)
    same(tried, other)


def test_losses_are_those_of_a_loop_by_hand():
    """A line through one weight: w' = w - rate * gradient, loss before each update."""
    layer = Dense("fc", 1, use_bias=False, input_sample_shape=(1,))
    net = FeedForwardNet([layer], loss=SquaredError())
    net.compile(SGD(lr=0.5))
    x, y = np.ones((4, 1), np.float32), np.full((4, 1), 3, np.float32)
    w = float(net.param_values()[0][0, 0])
    found = net.find_lr(x, y, batch_size=4, low=1e-3, high=1.0, steps=12)
    assert found.rates[0] == pytest.approx(1e-3)
    ratios = [b / a for a, b in itertools.pairwise(found.rates)]
    assert ratios == pytest.approx([1000 ** (1 / 11)] * len(ratios))
    for rate, loss in zip(found.rates, found.losses, strict=True):
        assert loss == pytest.approx(0.5 * (w - 3) ** 2, rel=1e-4, abs=1e-9)
        w -= rate * (w - 3)


def test_a_loader_stands_where_it_stood(build, data):
    loader = ArrayLoader(*data, batch_size=10, seed=3)
    iterator = iter(loader)
    next(iterator)
    before = loader.state_dict()
    build().find_lr(loader, batch_size=10, steps=12)
    assert loader.state_dict() == before
    build().find_lr(lambda epoch: ((data[0], data[1]) for _ in range(3)), steps=12)
    with pytest.raises(ArgumentError, match="would be used up; pass arrays, a loader"):
        build().find_lr(iter([data]))


def test_a_schedule_comes_back_and_columns_of_a_frame_are_not_remembered(build, data):
    frame = pytest.importorskip("pandas").DataFrame(data[0], columns=list("abcde"))
    schedule = Exponential(0.1, 10, 0.5)
    net = build(optimizer=SGD(lr=schedule))
    assert net.find_lr(frame, data[1], batch_size=10, steps=12).losses
    assert net.intake.columns == {}
    assert net.compiled.optimizer.lr is schedule


def test_an_interrupt_leaves_all_as_it_was(build, data, same):
    class Failing(SGD):
        failing = False

        def update(self, *arguments, **named):
            super().update(*arguments, **named)
            if self.failing and self.lr > 1e-3:
                raise KeyboardInterrupt

    tried, other = build(optimizer=Failing(lr=0.1)), build(optimizer=Failing(lr=0.1))
    for net in (tried, other):
        net.fit(*data, batch_size=10, epochs=1, verbose=False)
    tried.compiled.optimizer.failing = True
    with pytest.raises(KeyboardInterrupt):
        tried.find_lr(*data, batch_size=10, steps=20)
    assert tried.compiled.optimizer.lr == 0.1
    tried.compiled.optimizer.failing = False
    same(tried, other)
    assert equal(tried.compiled.optimizer.state_dict(), other.compiled.optimizer.state_dict())


def test_the_suggestion_is_a_tenth_of_where_the_loss_is_lowest():
    rates = np.geomspace(1e-6, 10, 200)
    curve = [2 - 1.5 / (1 + (0.01 / r)) + r for r in rates]
    found = RateRange(rates.tolist(), curve)
    lowest = rates[int(np.argmin(curve))]
    # The running mean lags by a few steps, each a factor of 1.08.
    assert lowest / 10 <= found.suggested < 3 * lowest / 10


def test_without_a_fall_or_a_rise_there_is_no_suggestion(rng):
    for ends, why in (((3, 1), "fell up to the last rate: pass high=10"), ((1, 3), "did not fall")):
        found = range_of(np.linspace(*ends, 50).tolist())
        assert found.suggested is None
        assert f": none is suggested; the loss {why}" in str(found)
        assert repr(found).endswith(": none is suggested>")
    noise = [range_of((2 + rng.normal(0, 0.1, 100)).tolist()).suggested for _ in range(20)]
    assert sum(each is not None for each in noise) <= 4


def test_it_ends_where_the_loss_leaves_its_range(build, data):
    found = build(optimizer=SGD(lr=0.1)).find_lr(*data, low=1e-3, high=1e6, steps=60)
    assert len(found.losses) < 60
    assert not found.losses[-1] <= 4 * max(found.losses[:6])
    assert all(loss <= 4 * max(found.losses[:6]) for loss in found.losses[:-1])


@NEEDED
def test_the_picture_has_both_losses_by_powers_of_ten(tmp_path):
    curve = [*np.linspace(3, 1, 40), *np.linspace(1, 3, 10), math.nan]
    found = range_of(curve)
    svg = found.plot(tmp_path / "range.svg")
    assert (tmp_path / "range.svg").read_text("utf-8") == svg
    assert images(found._repr_html_()) == [("losses by rate", svg)]
    shown = lines(svg)
    assert list(shown) == ["loss", "smoothed", f"suggested {found.suggested:.2g}"]
    assert {"0.0001", "0.001", "0.01", "0.1", "1", *shown} <= {*texts(svg)}
    # Rates that grow by a factor stand equally far from each other.
    xs = [x for x, _ in shown["loss"]]
    assert len(xs) == 50
    assert np.diff(xs) == pytest.approx([np.diff(xs).mean()] * 49, abs=0.11)
    assert range_of([*curve[:-1], 500.0]).plot() == svg
    with pytest.raises(ArgumentError, match=r"\.svg"):
        found.plot(tmp_path / "range.pdf")


@pytest.mark.parametrize(("arguments", "said"), [
    ({"low": 0.0}, "0 < low < high"), ({"low": 1.0, "high": 0.1}, "received 1.0 and 0.1"),
    ({"high": math.inf}, "both finite"), ({"steps": 9}, "steps")
])  # fmt: skip
def test_ranges_that_are_none(build, data, arguments, said):
    with pytest.raises(ArgumentError, match=said):
        build().find_lr(*data, **arguments)


def test_before_compile_without_a_rate_and_what_the_fit_refuses(build, data, same):
    net = FeedForwardNet([Dense("fc", 3, input_sample_shape=(5,))])
    with pytest.raises(CallOrderError, match=r"net\.compile"):
        net.find_lr(*data)
    net.compile(SGD(lr=None), SoftmaxCrossEntropy())
    with pytest.raises(ArgumentError, match=r"find_lr: expected an optimizer with a learning rate"):
        net.find_lr(*data)
    net, other = build(), build()
    with pytest.raises(Exception, match="samples"):
        net.find_lr(data[0], data[1][:7])
    same(net, other)
