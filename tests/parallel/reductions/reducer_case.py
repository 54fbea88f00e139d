"""The contract of a reducer: its ranks train as one process, recorded or not, or refuse alike."""

from __future__ import annotations

import copy
import pickle
import re
from functools import partial
from typing import ClassVar

import numpy as np
import pytest

import singanet
from singanet.data import ArrayLoader
from singanet.errors import ArgumentError, BackendError, CallOrderError, RankError, SingaNetError
from singanet.layers import BatchNormalization, Dropout
from singanet.optimizer import SGD, Accumulator, Adam, ClipByGlobalNorm, ClipByValue
from singanet.optimizer.chain import UpdateChain
from singanet.parallel import AllReduce, SingleProcess
from singanet.testing import strict_device
from singanet.testing.device_like import DeviceArray
from singanet.training.callbacks import EMA, ModelCheckpoint
from tests.kit.nets import dense_net, uneven_net, values_of, words_net
from tests.kit.ranks import (
    expect_near_values,
    expect_same_bits,
    expect_same_values,
    served,
    together,
)
from tests.parallel.reductions.reducer_settings import SETTINGS, WORDS, Twice, X, Y, alone, train


def on_host(array):
    return array.get() if isinstance(array, DeviceArray) else np.asarray(array)


class ReducerCase:
    """What holds for any reducer; a subclass names the kind and its options."""

    kind: ClassVar = None
    options: ClassVar = {}  # its arguments after the rule
    servers: ClassVar = 0  # server ranks beside the workers
    exact: ClassVar = True  # ranks train as one process up to rounding; others only end alike
    bits_of: ClassVar = None  # a kind whose parameters and state it has to the bit
    refuses: ClassVar = {}  # settings that it refuses, with a part of the error's text
    share: ClassVar = 1.0  # its traffic by that of a sum of all gradients; None: not comparable
    fixed: ClassVar = ()  # options that cannot be assigned later, or only other values
    other: ClassVar = {}  # options that differ on another rank, which is refused
    momentum: ClassVar = 0.9  # that of the rule, if the reducer takes one
    precisions: ClassVar = (None, "float16")  # the types that `fit` computes in
    averages: ClassVar = True  # `EMA` follows its parameters
    clips: ClassVar = ("value", "layer", "global")  # what `fit` clips by
    recorded: ClassVar = True  # its steps are recorded
    # What it says of steps with rows, or whose losses count samples, if it does not record these.
    not_recorded: ClassVar = "$^"
    gathers: ClassVar = False  # passes read parameters of other ranks, which no step counts
    near: ClassVar = (0.0, 0.0)  # how near an exact reducer is to one process in any setting
    inexact: ClassVar = ()  # settings in which an exact reducer is not
    skips: ClassVar = True  # all ranks skip a step of which one has gradients that are not finite
    not_on_device: ClassVar = ""  # what is told of a net on a device, if it has to be on the CPU
    unsent: ClassVar = ""  # what is told where the state of other ranks is left out

    def wrap(self, rule, comm=None, **servers):
        return self.kind(rule, comm=comm, **self.options, **servers)

    def rule(self):
        return SGD(lr=0.1, momentum=self.momentum)

    def run(self, work, size=2, kind=None):
        if kind is not None:
            return together(lambda comm: work(comm, partial(kind, comm=comm)), size)
        if self.servers:
            return served(
                lambda comm, ranks: work(comm, partial(self.wrap, comm=comm, servers=ranks)),
                size,
                self.servers,
            )
        return together(lambda comm: work(comm, partial(self.wrap, comm=comm)), size)

    def trained(self, name, size, records, kind=None, **more):
        def work(comm, wrap):
            comm._on_device = more.get("takes", False)
            place = more.get("place", lambda net: net)
            own = comm.rank in records
            net, optimizer, losses = train(
                SETTINGS[name], wrap, comm.rank, size, own, place=place, rule=self.rule_for
            )
            found = {"losses": np.array(losses)}
            UpdateChain(optimizer).reducers[0].unify(net)
            found |= {f"net/{n}": on_host(value) for n, value in values_of(net).items()}
            found |= {n: on_host(value) for n, value in optimizer.state_dict().items()}
            comm.barrier("the values")
            return found, net.programs if self.recorded else None, losses

        return self.run(work, size, kind)

    def expect_alike(self, name, made):
        """Check that all ranks have the same parameters; running state is each rank's own."""
        values = [
            {n: a for n, a in found.items() if n.startswith("net/") and "/mean" not in n}
            for found, *_ in made
        ]
        expect_same_values([{n: a for n, a in v.items() if "/var" not in n} for v in values])

    @staticmethod
    def size(name):
        return 3 if len(name) % 3 == 0 else 2

    def rule_for(self, setting):
        return setting.rule()

    # -- training ---------------------------------------------------------------------------------

    @pytest.mark.few(2, full=7)
    @pytest.mark.parametrize("name", SETTINGS)
    def test_ranks_train_as_one_process_recorded_or_not(self, name):
        size, setting = self.size(name), SETTINGS[name]
        if name in self.refuses:
            self.expect_refused(name, size)
            return
        by_layers = self.trained(name, size, ())
        self.expect_alike(name, by_layers)
        for records in (range(size), (1,)) if self.recorded else ():
            recorded = self.trained(name, size, records)
            for (one, *_), (two, programs, _) in zip(by_layers, recorded, strict=True):
                np.testing.assert_equal(two, one)
                self.expect_refusals(setting, programs)
                assert setting.told == "?" or all(setting.told in n for n in programs.notes)
            programs = [programs for _, programs, _ in recorded if programs.reports()]
            assert len(programs) == len(records)
            if not (setting.change or self.servers or programs[0].refusals):
                phases = [report.phases() for each in programs for report in each.reports()]
                assert any("communication" in phase for phase in phases)
        if self.bits_of is not None:
            wanted = self.trained(name, size, (), self.bits_of)
            for (one, *_), (two, *_) in zip(wanted, by_layers, strict=True):
                if setting.norm:
                    expect_near_values(two, one, 1e-5, 1e-6)
                else:
                    np.testing.assert_equal(two, one)
        if self.exact and setting.near and name not in self.inexact:
            self.expect_one_process(name, size, by_layers)

    def expect_refusals(self, setting, programs):
        some = setting.told == "?" or setting.x is WORDS or setting.norm
        own = self.not_recorded if some else "$^"
        allowed = f"{setting.not_recorded}|{own}"
        assert all(re.search(allowed, told) for told in programs.refusals), programs.refusals

    def expect_one_process(self, name, size, made):
        values, state, losses = alone(name, size)
        setting = SETTINGS[name]
        found = made[0][0]
        near = {f"net/{n}": value for n, value in values.items()} | state
        # Servers have the rate of their rules, workers what was assigned.
        near.pop("*/learning_rate", None)
        rtol, atol = (max(pair) for pair in zip(setting.near, self.near, strict=True))
        expect_near_values({n: found[n] for n in near}, near, rtol, atol)
        if setting.losses:
            shards = [
                [len(np.arange(24)[setting.shards(r, size, n)]) for n in setting.counts]
                for r in range(size)
            ]
            mean = np.average([told for *_, told in made], axis=0, weights=shards)
            np.testing.assert_allclose(mean, losses, rtol=1e-4, atol=1e-6)

    def expect_refused(self, name, size):
        setting = SETTINGS[name]

        def work(comm, wrap):
            net = setting.build()
            before = values_of(net)
            with pytest.raises(SingaNetError, match=self.refuses[name]):
                train(setting, wrap, comm.rank, size, place=lambda _: net, rule=self.rule_for)
            if not (setting.joins or setting.change):
                expect_same_values([before, values_of(net)])

        self.run(work, size)

    def test_parameters_are_those_of_rank_0_from_the_first_step_on(self):
        def work(comm, wrap):
            net = words_net(seed=comm.rank)
            wrap(self.rule()).meet(net)
            found = values_of(net)
            comm.barrier("the values")
            return found

        expect_same_values([values_of(words_net(seed=0)), *self.run(work)])

    def test_a_loop_of_ones_own_has_the_bits_of_steps(self):
        def work(comm, wrap):
            x, y, found = X[comm.rank :: 2], Y[comm.rank :: 2], []
            for own in (False, True):
                net, optimizer = uneven_net(), wrap(self.rule())
                net.programs.enabled = False
                optimizer.meet(net)
                for _ in range(3):
                    if not own:
                        net.step(x, y, optimizer)
                        continue
                    net.loss.forward(True, net.forward(True, x), y)
                    optimizer.begin(len(x))
                    for item in net.backward(net.loss.backward()):
                        optimizer.update(*item)
                    optimizer.end()
                optimizer.unify(net)
                found.append(values_of(net))
                comm.barrier("the values")
            expect_same_values(found)

        self.run(work)

    # -- fit --------------------------------------------------------------------------------------

    def takes(self, precision, clip_by, accumulates):
        """Whether it takes such a fit; otherwise all ranks refuse it."""
        return precision in self.precisions and clip_by in (None, *self.clips)

    @pytest.mark.filterwarnings("ignore:net.fit. the loss is nan")
    @pytest.mark.few(1, full=2)
    @pytest.mark.parametrize(
        "said", [{}, {"clip": 0.5, "clip_by": "value"}, {"clip": 0.5, "clip_by": "global"},
                 {"clip": 0.5}, {"accumulate": 2}], ids=str
    )  # fmt: skip
    @pytest.mark.parametrize("precision", [None, "float16"])
    def test_a_fit_of_uneven_shards_is_recorded_to_the_bit(self, precision, said):
        def work(comm, wrap, records):
            net, ema = uneven_net(), EMA(0.5)
            net.programs.enabled = records and self.recorded
            x, y = X[:21].copy(), Y[:21]
            if precision and self.skips:
                # The gradients of one batch are not finite, on the rank with this sample.
                x[11, 0] = np.nan
            net.compile(wrap(SGD(lr=0.05, momentum=self.momentum)), mixed_precision=precision)
            loader = ArrayLoader(
                x, y, 6, shuffle=False, rank=comm.rank, world_size=comm.size, split_batches=True
            )
            followed = [ema] if self.averages else []
            history = net.fit(loader, epochs=3, callbacks=followed, verbose=False, **said)
            found = {"loss": np.array(history["loss"]), **values_of(net)}
            if not self.gathers:
                found |= {f"mean {n}": np.array(a) for n, a in ema.averages.items()}
            if precision:
                own = net.compiled.precision
                found |= {f"master {n}": np.array(a) for n, a in own.masters.items()}
                found["numbers"] = np.array([own.skipped, own.scale, own.good])
            comm.barrier("the values")
            return found

        clip_by = said.get("clip_by", "layer" if "clip" in said else None)
        if not self.takes(precision, clip_by, "accumulate" in said):
            with pytest.raises((ArgumentError, RankError)):
                self.run(lambda comm, wrap: work(comm, wrap, False))
            return
        by_layers, recorded = (self.run(lambda c, w, r=r: work(c, w, r)) for r in (False, True))
        np.testing.assert_equal(recorded, by_layers)
        if self.bits_of and clip_by in (None, "value"):
            wanted = self.run(lambda comm, wrap: work(comm, wrap, False), kind=self.bits_of)
            for one, two in zip(wanted, by_layers, strict=True):
                expect_same_values([one, {n: a for n, a in two.items() if n in one}])
        expect_same_values([{n: a for n, a in one.items() if n != "loss"} for one in by_layers])
        if precision:
            assert by_layers[0]["numbers"][0] == 3 * self.skips

    @pytest.mark.few(1, full=1)
    @pytest.mark.parametrize("then", [2, 3, 1])
    @pytest.mark.parametrize("precision", [None, "float16"])
    def test_a_fit_goes_on_from_its_checkpoint_with_any_number_of_ranks(
        self, precision, then, tmp_path
    ):
        precision = precision if precision in self.precisions else None

        def fit(comm, wrap, epochs, folder, resume=None):
            net = uneven_net(seed=comm.rank)
            net.compile(
                wrap(Adam(lr=0.003) if self.momentum else SGD(lr=0.1)), mixed_precision=precision
            )
            saves = ModelCheckpoint(tmp_path / folder, monitor=None)
            net.fit(X, Y, 8, epochs, shuffle=False, callbacks=[saves], resume=resume, verbose=False)
            state = net.compiled.optimizer.state_dict() if comm.size == 2 else {}
            found = {f"net/{n}": value for n, value in values_of(net).items()} | state
            comm.barrier("the values")
            return found

        whole = self.run(lambda c, w: fit(c, w, 4, "whole"))
        self.run(lambda c, w: fit(c, w, 2, "half"))
        again = partial(self.run, lambda c, w: fit(c, w, 4, "rest", tmp_path / "half"), then)
        if then == 2:
            np.testing.assert_equal(again(), whole)
            return
        if self.unsent:
            with pytest.warns(RuntimeWarning, match=self.unsent):
                made = again()
        else:
            made = again()
        expect_same_values(made)
        if self.exact and not self.unsent:
            near = (1e-4, 1e-5) if precision is None else (1e-2, 2e-3)
            expect_near_values(made[0], {n: whole[0][n] for n in made[0]}, *near)

    # -- copies and files -------------------------------------------------------------------------

    @staticmethod
    def copied_net():
        """Statistics are of all ranks, masks each rank's own."""
        return dense_net(
            wide=8, more=[BatchNormalization("n", synchronized=True), Dropout("o", 0.3)]
        )

    @pytest.mark.parametrize("begun", [False, True])
    def test_a_compiled_net_and_its_copies_train_alike(self, begun):
        net = self.copied_net()
        net.compile(self.wrap(self.rule()))
        if begun:
            net.fit(X, Y, batch_size=8, epochs=2, verbose=False)
        nets = [net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))]
        losses = [each.fit(X, Y, batch_size=8, epochs=2, verbose=False)["loss"] for each in nets]
        assert losses[0] == losses[1] == losses[2]
        expect_same_bits(nets)

    def test_a_lone_process_has_the_bits_of_the_plain_rule_and_is_saved_without_ranks(
        self, tmp_path
    ):
        nets, rules = [uneven_net(), uneven_net()], [self.wrap(self.rule()), self.rule()]
        losses = [[n.step(X, Y, r)[0] for _ in range(4)] for n, r in zip(nets, rules, strict=True)]
        assert losses[0] == losses[1]
        expect_same_bits(nets)
        assert nets[0].programs.reports()
        optimizer = rules[0]
        nets[0].compile(optimizer)
        nets[0].save_model(tmp_path / "net.singanet")
        found = singanet.load_model(tmp_path / "net.singanet").compiled.optimizer
        assert isinstance(found.comm, SingleProcess)
        assert repr(found) == repr(optimizer)
        with pytest.raises(ArgumentError, match="the optimizer inside"):
            nets[1].memory(8, optimizer=optimizer)

    # -- traffic ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", [2, 3])
    def test_traffic_is_counted_and_as_much_as_promised(self, size):
        def work(comm, wrap):
            net, optimizer = dense_net(wide=600), wrap(self.rule())
            optimizer.meet(net)
            before, told = comm.exchanged, []
            for _ in range(12):
                net.step(X[:4], Y[:4], optimizer)
                told.append(optimizer.exchanged)
            return comm.exchanged.since(before), told, sum(p.nbytes for p in net.params())

        made = self.run(work, size)
        for exchanged, told, _ in made:
            steps = sum(each.sent for each in told), sum(each.received for each in told)
            assert steps < tuple(exchanged) if self.gathers else steps == tuple(exchanged)
        sent, received = (sum(each[0][k] for each in made) for k in (0, 1))
        if not self.servers:
            assert sent == received
        if self.share is not None:
            dense = 12 * 2 * (size - 1) * made[0][2]
            assert sent / dense == pytest.approx(self.share, rel=0.05)

    # -- refusals ---------------------------------------------------------------------------------

    def test_what_belongs_around_it_is_refused_inside(self):
        def work(comm, wrap):
            for inside in (Accumulator(SGD(lr=0.1), 2), AllReduce(SGD(lr=0.1), SingleProcess())):
                with pytest.raises(ArgumentError, match="process's own batch"):
                    wrap(inside)

        self.run(work)

    def test_gradients_before_a_net_are_refused(self):
        def work(comm, wrap):
            with pytest.raises(CallOrderError, match="meet"):
                wrap(SGD(lr=0.1)).update([], [], [])

        self.run(work)

    def test_an_option_that_cannot_change_is_refused(self):
        made = self.wrap(self.rule())
        before = repr(made)
        for name, value in self.fixed:
            with pytest.raises(SingaNetError):
                setattr(made, name, value)
        assert repr(made) == before


class AmongRanks(ReducerCase):
    @pytest.mark.few(1, full=0)
    @pytest.mark.parametrize("name", SETTINGS)
    @pytest.mark.parametrize("takes", [False, True], ids=["over the host", "there"])
    def test_recorded_steps_on_a_device_have_the_bits_of_the_layers_there(self, name, takes):
        size = self.size(name)
        if name in self.refuses:
            name = "momentum"

        def place(net):
            net.to_device(strict_device())
            return net

        if self.not_on_device:
            with pytest.raises(BackendError, match=self.not_on_device):
                self.trained(name, size, (), place=place)
            return
        here = self.trained(name, size, ())
        layers = self.trained(name, size, (), takes=takes, place=place)
        recorded = self.trained(name, size, range(size), takes=takes, place=place)
        for (one, *_), (two, *_), (three, programs, _) in zip(here, layers, recorded, strict=True):
            allowed = f"{SETTINGS[name].not_recorded}|{self.not_recorded}"
            assert all(re.search(allowed, told) for told in programs.refusals)
            assert two.keys() == three.keys() == one.keys()
            expect_same_values([two, three])
            if SETTINGS[name].near:
                near = {n: 1e-4 * max(1.0, np.abs(a).max(initial=0.0)) for n, a in one.items()}
                for n, value in two.items():
                    np.testing.assert_allclose(value, one[n], rtol=0, atol=near[n], err_msg=n)

    @pytest.mark.parametrize("steps", [0, 4])
    def test_copies_go_on_with_the_same_ranks(self, steps):
        """Between averagings too, when the ranks' parameters differ."""

        def work(comm, wrap):
            x, y = X[comm.rank :: 2], Y[comm.rank :: 2]
            net, optimizer = self.copied_net(), wrap(self.rule())
            for _ in range(steps):
                net.step(x, y, optimizer)
            pairs = [(net, optimizer), copy.deepcopy((net, optimizer))]
            losses = [[each.step(x, y, by) for _ in range(5)] for each, by in pairs]
            assert losses[0] == losses[1]
            expect_same_bits([net, pairs[1][0]])

        self.run(work)

    @pytest.mark.parametrize("differs", ["rule", "rate", "net", "kind", "option"])
    def test_what_differs_between_ranks_is_refused_on_all(self, differs):

        def work(comm, wrap):
            first = comm.rank == 0
            rule = SGD(lr=0.1, weight_decay=0.1 * (differs == "rule" and not first))
            rule = SGD(lr=0.2) if differs == "rate" and not first else rule
            net = uneven_net() if first or differs != "net" else words_net()
            optimizer = wrap(rule)
            if differs == "option" and not first:
                optimizer = self.kind(rule, comm=comm, **{**self.options, **self.other})
            if differs == "kind" and not first:
                kind = AllReduce if self.kind is not AllReduce else singanet.parallel.PowerSGD
                optimizer = kind(rule, comm)
            before = values_of(net)
            with pytest.raises(RankError, match="one net and one optimizer") as refused:
                optimizer.meet(net)
            assert "ranks 0 and 1" in refused.value.where
            assert differs != "rate" or "learning_rate=0.2" in refused.value.received
            expect_same_values([before, values_of(net)])

        self.run(work)


class OfGradients(AmongRanks):
    """A reducer that sums the gradients of all ranks for one update."""

    def test_nets_that_take_turns_with_one_reducer_train_as_with_one_each(self):
        def work(comm, wrap):
            found = []
            for apart in (False, True):
                first = wrap(self.rule())
                nets = [dense_net(1, 20), dense_net(2, 20)]
                optimizers = [first, wrap(self.rule()) if apart else first]
                for k, turn in enumerate([0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0, 1, 1, 0]):
                    rows = np.arange(k, k + 10)[comm.rank :: 2]
                    nets[turn].step(X[rows], Y[rows], optimizers[turn])
                found.append([values_of(net) for net in nets])
            return found

        for shared, apart in self.run(work):
            for one, two in zip(shared, apart, strict=True):
                expect_same_values([one, two])

    def test_clipping_around_it_is_refused(self):
        def work(comm, wrap):
            net = uneven_net()
            with pytest.raises(ArgumentError, match=rf"{self.kind.__name__}\(ClipByValue"):
                net.step(X, Y, ClipByValue(wrap(self.rule()), 1.0))
            expect_same_bits([uneven_net(), net])

        self.run(work)

    def test_a_loop_without_an_end_is_refused(self):
        def work(comm, wrap):
            net, optimizer = uneven_net(), wrap(self.rule())
            optimizer.meet(net)
            for _ in range(2):
                net.loss.forward(True, net.forward(True, X), Y)
                optimizer.begin(len(X))
                for item in net.backward(net.loss.backward()):
                    optimizer.update(*item)

        with pytest.raises((CallOrderError, RankError), match="end|fail|same pass"):
            self.run(work)

    def test_a_rank_at_another_point_of_its_step_is_told_so(self):
        def work(comm, wrap):
            net, clip = uneven_net(), ClipByGlobalNorm(SGD(lr=0.1), 1.0)
            optimizer = wrap(clip)
            optimizer.meet(net)
            if comm.rank:
                with clip.knowing(1.0):
                    net.step(X, Y, optimizer)
            else:
                net.step(X, Y, optimizer)

        with pytest.raises(RankError, match=r"same point|nothing"):
            self.run(work)

    @pytest.mark.parametrize("records", [True, False])
    def test_after_an_error_among_the_sums_no_step_is_taken(self, records):
        heard = []

        def work(comm, wrap):
            layer = Twice("twice")
            net = dense_net(wide=8, more=[layer])
            net.programs.enabled = records
            optimizer = wrap(SGD(lr=0.01))
            for _ in range(3):
                net.step(X, Y, optimizer)
            layer.fails = comm.rank == 1
            try:
                net.step(X, Y, optimizer)
            except KeyError:
                layer.fails = False
                before = values_of(net)
                with pytest.raises(SingaNetError):
                    net.step(X, Y, optimizer)
                # Memory that others still write to belongs to nobody else.
                np.testing.assert_array_equal(net.predict(X), net.predict(X))
                expect_same_values([before, values_of(net)])
                heard.append(True)
                raise

        with pytest.raises((KeyError, RankError)):
            self.run(work)
        assert heard
