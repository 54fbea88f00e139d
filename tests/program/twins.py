"""Pairs of one net, one of which records and one of which runs its layers at every call."""

import numpy as np

from singanet.errors import SingaNetError
from singanet.testing.layer_case import on_host


def outcome(act):
    """Return the result of ``act``, or the class and text of its error."""
    try:
        return act()
    except Exception as error:  # noqa: BLE001 - any error is compared
        return type(error), str(error)


class Twins:
    """The net of ``make`` twice, with an optimizer each; what is done is done to both."""

    def __init__(self, make, optimizer=None):
        self.nets = make(), make()
        self.nets[1].programs.enabled = False
        self.optimizers = (None, None) if optimizer is None else (optimizer(), optimizer())

    @property
    def recorded(self):
        return self.nets[0]

    def both(self, act):
        """``act(net, optimizer)`` on both; their results."""
        return [act(*pair) for pair in zip(self.nets, self.optimizers, strict=True)]

    def step(self, x, y, **options):
        one, two = self.both(lambda net, optimizer: net.step(x, y, optimizer, **options))
        # A loss that is no number is the same in both.
        np.testing.assert_equal(one, two)
        self.expect_equal()
        return one

    def train(self, batches, **options):
        for x, y in batches:
            self.step(x, y, **options)

    def outcomes(self, act):
        """The result or error of ``act`` on one, which has to be the same on both."""
        one, two = self.both(lambda *pair: outcome(lambda: act(*pair)))
        assert one == two
        self.expect_equal()
        return one

    def refuse(self, act, words="", error=SingaNetError):
        """Both refuse ``act`` with the same words, and are left alike; the text."""
        kind, text = self.outcomes(act)
        assert issubclass(kind, error)
        assert words in text
        return text

    def loop(self, x, dy):
        """A loop of the caller's that updates at each yield."""
        self.forward(True, x)
        for net, optimizer in zip(self.nets, self.optimizers, strict=True):
            for item in net.backward(dy):
                optimizer.update(*item)
        self.expect_equal()

    def fit(self, x, y, batch_size=4, epochs=1, *, compiled=None, **options):
        def act(net, optimizer):
            net.compile(optimizer, **(compiled() if compiled else {}))
            return dict(net.fit(x, y, batch_size, epochs, verbose=False, **options))

        one, two = self.both(act)
        np.testing.assert_equal(one, two)
        self.expect_equal()
        return one, two

    def forward(self, flag, x, output=()):
        outs = self.both(lambda net, _: net.forward(flag, x, output))
        expect_same(*outs)
        return outs

    def walk(self, dy, output=()):
        walks = self.both(lambda net, _: net.backward(dy, output))
        items = []
        for one, two in zip(*walks, strict=True):
            expect_items_same(one, two)
            items.append(one)
        return items

    unlike = ""
    """A part of the keys of state that may be another in both."""

    def expect_equal(self):
        """Parameters, running state and the optimizers' state are the same to the bit."""
        one, two = self.nets
        for a, b in zip(one.params(), two.params(), strict=True):
            assert (a.name, a.dtype) == (b.name, b.dtype)
            assert same_bits(on_host(a.peek()), on_host(b.peek())), a.name
        assert one.rng.bit_generator.state == two.rng.bit_generator.state
        if self.optimizers[0] is not None:
            first, second = (
                {k: a for k, a in o.state_dict().items() if not self.unlike or self.unlike not in k}
                for o in self.optimizers
            )
            assert first.keys() == second.keys()
            for key, array in first.items():
                assert same_bits(array, second[key]), key

    def expect_recorded(self, loops=True):
        """The first net replayed programs, the other one none; what these could not record.

        ``loops`` says that this holds for loops of the caller's own, too.
        """
        programs = self.recorded.programs
        reports = programs.reports()
        assert reports
        assert all("a caller's loop" in why and not loops for why in programs.refusals)
        assert self.nets[1].programs.reports() == []
        return [note for report in reports for note in report.notes]


def same_bits(one, two):
    """Whether both have the same bits, but for the sign of what is no number."""
    if one.tobytes() == two.tobytes():
        return True
    known = np.isnan(one)
    there = one.shape == two.shape and np.array_equal(known, np.isnan(two))
    return there and one[~known].tobytes() == two[~known].tobytes()


def expect_items_same(one, two):
    assert (one.names, one.layer) == (two.names, two.layer)
    expect_same(one.grads, two.grads)
    expect_same(one.output_grads, two.output_grads)


def expect_same(one, two):
    """Arrays, numbers, and lists, tuples and dicts of them, are the same to the bit, also NaN."""
    assert type(one) is type(two), (one, two)
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        one, two = [*one.values()], [*two.values()]
    if isinstance(one, (list, tuple)):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            expect_same(a, b)
    elif isinstance(one, np.ndarray):
        assert (one.shape, one.dtype) == (two.shape, two.dtype)
        np.testing.assert_array_equal(one, two)
    else:
        assert one == two or (one != one and two != two), (one, two)
