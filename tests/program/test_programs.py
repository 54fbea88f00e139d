"""Steps and evaluations of whole nets: recorded and by the layers, equal to the bit."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import tracemalloc

import numpy as np
import pytest

import singanet
from singanet import Input
from singanet.engine.backward import ones
from singanet.errors import CallOrderError, ShapeError, SingaNetError
from singanet.layers import (
    LSTM,
    Activation,
    Add,
    BatchNormalization,
    Concat,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    MaxPooling2D,
    Split,
)
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy
from singanet.optimizer import SGD, Accumulator, Adam
from singanet.program.programs import Programs

from .twins import Twins, expect_same


def falling(step):
    return 0.02 / (1 + step)


def adam():
    return Adam(lr=falling)


def image_net():
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=3)
    net.add(Conv2D("conv", 4, 3, input_sample_shape=(2, 6, 6)))
    net.add(BatchNormalization("norm"))
    net.add(Activation("relu"))
    net.add(MaxPooling2D("pool", 2, 2))
    net.add(Dropout("drop", 0.3))
    net.add(Flatten("flat"))
    net.add(Dense("out", 5))
    return net


def image_batches(count, batch=8, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal((batch, 2, 6, 6)).astype(np.float32), rng.integers(0, 5, batch))
        for _ in range(count)
    ]


def residual_net():
    x = Input("x", (6,))
    h = Dense("in", 6)(x)
    first, second = Split("split", 2)(h)
    shared = Dense("shared", 6)
    y = Add("sum")([shared(Activation("a", "tanh")(first)), shared(second), h])
    out = Dense("out", 3)(Concat("both", 1)([y, x]))
    return singanet.FeedForwardNet(SquaredError(), inputs=x, outputs=out, seed=1)


def word_net():
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=1)
    net.add(Embedding("words", 11, 4, input_sample_shape=(5,)))
    net.add(LSTM("rnn", 6, num_stacks=2, bidirectional=True, return_sequences=False))
    net.add(Dense("out", 3))
    return net


def two_headed_net():
    images, numbers = Input("images", (2, 4, 4)), Input("numbers", (3,))
    h = Concat("both", 1)([Flatten("flat")(images), Dense("wide", 5)(numbers)])
    h = Dropout("drop", 0.2)(Dense("body", 7)(h))
    outs = [Dense("kind", 4)(h), Dense("size", 1)(h)]
    loss = MultiLoss({"kind": SoftmaxCrossEntropy(), "size": SquaredError()}, {"size": 0.5})
    return singanet.FeedForwardNet(loss, inputs=[images, numbers], outputs=outs, seed=1)


def test_shared_and_branching_layers(rng):
    twins = Twins(residual_net, adam)
    for _ in range(6):
        x = rng.standard_normal((4, 6)).astype(np.float32)
        twins.step(x, rng.standard_normal((4, 3)).astype(np.float32))
    assert twins.expect_recorded() == []


def test_words_give_row_sparse_gradients(rng):
    for optimizer in (adam, lambda: SGD(lr=0.1, momentum=0.9)):
        twins = Twins(word_net, optimizer)
        for _ in range(6):
            twins.step(rng.integers(0, 11, (4, 5)), rng.integers(0, 3, 4))
        assert not twins.expect_recorded()


def test_several_inputs_and_outputs(rng):
    twins = Twins(two_headed_net, adam)
    for _ in range(6):
        x = {
            "images": rng.standard_normal((4, 2, 4, 4)).astype(np.float32),
            "numbers": rng.standard_normal((4, 3)).astype(np.float32),
        }
        y = {
            "kind": rng.integers(0, 4, 4),
            "size": rng.standard_normal((4, 1)).astype(np.float32),
        }
        twins.step(x, y)
        twins.forward(False, x)
    twins.expect_recorded()


def test_evaluation_between_steps_shares_the_parameters():
    twins = Twins(image_net, adam)
    held = image_batches(1, batch=5, seed=9)[0]
    for x, y in image_batches(6):
        twins.step(x, y)
        twins.forward(False, held[0])
        one, two = twins.both(lambda net, _: net.evaluate(*held))
        assert one == two
    assert len(twins.recorded.programs.reports()) >= 2


def test_outputs_of_evaluations_are_the_callers():
    net, batches = image_net(), image_batches(4)
    outs = [net.forward(False, x) for x, _ in batches]
    copies = [out.copy() for out in outs]
    net.forward(False, batches[0][0])
    for number, (out, kept) in enumerate(zip(outs, copies, strict=True)):
        np.testing.assert_array_equal(out, kept)
        assert all(not np.shares_memory(out, other) for other in outs[:number])


def test_partial_last_batches_have_a_program_of_their_own():
    twins = Twins(image_net, adam)
    for _ in range(4):
        for x, y in [*image_batches(2), *image_batches(1, batch=3)]:
            twins.step(x, y)
    twins.expect_recorded()
    kernels = len(twins.recorded.programs.reports())
    for x, y in image_batches(1, batch=3):
        twins.step(x, y)
    assert len(twins.recorded.programs.reports()) == kernels


def test_more_shapes_than_are_kept_stay_right():
    twins = Twins(image_net, adam)
    for _ in range(3):
        for batch in range(1, 12):
            for x, y in image_batches(2, batch=batch):
                twins.step(x, y)
    assert len(twins.recorded.programs.reports()) <= singanet.program.programs.CAPACITY


def test_sample_weights_come_and_go(rng):
    twins = Twins(image_net, adam)
    for x, y in image_batches(5):
        twins.step(x, y, sample_weight=rng.uniform(0, 2, 8).astype(np.float32))
        twins.step(x, y)
        twins.step(x, y, sample_weight=rng.uniform(0, 2, 8))
    twins.expect_recorded()


def test_targets_of_other_types_and_layouts(rng):
    twins = Twins(image_net, adam)
    for x, y in image_batches(4):
        twins.step(x, y)
        twins.step(x, y.astype(np.uint8))
        twins.step(x, np.eye(5, dtype=np.float32)[y])
        twins.step(x, np.asfortranarray(np.eye(5)[y]))
        wide = np.zeros(16, np.int64)
        wide[::2] = y
        twins.step(x, wide[::2])
    twins.expect_recorded()


def test_inputs_of_other_layouts_and_types():
    twins = Twins(image_net, adam)
    for x, y in image_batches(4):
        twins.step(x, y)
        twins.step(np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2), y)
        twins.step(x[:, :, ::-1], y)
        twins.step(x.astype(np.float64), y)
        twins.step((10 * x).astype(np.int32), y)
    twins.expect_recorded()


def test_a_metric_given_for_one_step():
    twins = Twins(image_net, adam)
    for number, (x, y) in enumerate(image_batches(6)):
        if number % 2:
            _, seen = twins.step(x, y, measure=lambda out, y: float(out[0, 0]))
            assert not float(8 * seen).is_integer()
        else:
            _, seen = twins.step(x, y)
            assert float(8 * seen).is_integer()


def test_batches_of_no_samples_run_by_the_layers(rng):
    twins = Twins(image_net, adam)
    for number, (x, y) in enumerate(image_batches(6)):
        twins.step(x, y)
        twins.forward(False, x[:0])
        twins.forward(True, x[:0])
        twins.walk(np.zeros((0, 5), np.float32))
        if number:
            assert twins.recorded.programs.refusals[0] == "a batch of no samples"
    with pytest.raises(CallOrderError, match="a batch of no samples"):
        twins.recorded.record(x[:0])


def test_what_looks_at_each_layer_sees_it_by_the_layers():
    twins, seen = Twins(image_net, adam), []
    for x, y in image_batches(5):
        twins.step(x, y)
        twins.step(x, y, on_layer=lambda item: seen.append(item.names))
    assert seen.count(["out/weight", "out/bias"]) == 10


# -- the net changes in the middle ----------------------------------------------------------


def replace_value(net):
    param = net.params()[0]
    param.value = param.value * np.float32(0.5)


def write_value(net):
    net.params()[0].value *= np.float32(0.5)


def fix_layer(net):
    net.layers[0].trainable = False


def fix_param(net):
    net.params()[-1].trainable = False


def freeze(net):
    net.freeze("flat")


def add_layer(net):
    net.add(Dense("more", 5))


def as_double(net):
    net.as_type(np.float64)


def other_loss(net):
    net.loss = SoftmaxCrossEntropy(label_smoothing=0.2)


def other_metric(net):
    net.metric = None


def other_generator(net):
    net.rng = np.random.default_rng(77)


def other_rate_of_dropout(net):
    next(layer for layer in net.layers if layer.name == "drop").p = 0.7


def other_smoothing(net):
    net.loss.label_smoothing = 0.3


def same_generator_elsewhere(net):
    net.rng.random(7)


CHANGES = [
    replace_value, write_value, fix_layer, fix_param, freeze, add_layer, as_double, other_loss,
    other_metric, other_rate_of_dropout, other_smoothing, other_generator, same_generator_elsewhere,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_net_goes_on_as_it_is_now(change):
    twins = Twins(image_net, adam)
    data = image_batches(4)
    for x, y in data:
        twins.step(x, y)
        twins.forward(False, x)
    twins.both(lambda net, _: change(net))
    for x, y in data * 2:
        x = x.astype(twins.recorded.dtype)
        twins.step(x, y)
        twins.forward(False, x)
    twins.expect_recorded()


def test_unfreezing_and_training_again():
    twins = Twins(image_net, adam)
    for turn in range(3):
        for x, y in image_batches(3):
            twins.step(x, y)
        twins.both(lambda net, _, turn=turn: net.unfreeze() if turn % 2 else net.freeze("flat"))
    twins.expect_recorded()


def test_a_checkpoint_resumes_to_the_bit(tmp_path):
    twins = Twins(image_net, adam)
    data = image_batches(9)
    for x, y in data[:4]:
        twins.step(x, y)
    twins.recorded.save(tmp_path / "net.npz")
    saved = twins.optimizers[0].state_dict()
    draws = copy.deepcopy(twins.recorded.rng.bit_generator.state)
    for x, y in data[4:]:
        twins.step(x, y)
    after = [value.copy() for value in twins.recorded.param_values()]
    for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
        net.load(tmp_path / "net.npz")
        optimizer.load_state_dict(saved)
        net.rng.bit_generator.state = draws
    for x, y in data[4:]:
        twins.step(x, y)
    for value, then in zip(twins.recorded.param_values(), after, strict=True):
        np.testing.assert_array_equal(value, then)


def test_two_nets_interleaved_do_not_meet(rng):
    pairs = [Twins(image_net, adam), Twins(residual_net, adam), Twins(image_net, adam)]
    for number, (x, y) in enumerate(image_batches(6)):
        pairs[0].step(x, y)
        numbers = rng.standard_normal((4, 9)).astype(np.float32)
        pairs[1].step(numbers[:, :6], numbers[:, 6:])
        if number % 2:
            pairs[2].step(x[::-1], y[::-1])


def test_nets_with_one_optimizer_between_them():
    one, two = Twins(image_net, adam), Twins(image_net, adam)
    two.optimizers = one.optimizers
    for x, y in image_batches(5):
        one.step(x, y)
        two.step(x, y)


# -- errors ---------------------------------------------------------------------------------


def test_a_wrong_label_leaves_parameters_alone_and_the_next_step_works():
    twins = Twins(image_net, adam)
    data = image_batches(6)
    for x, y in data[:3]:
        twins.step(x, y)
    x, y = data[3]
    before = [(p.value.copy(), p.is_state) for p in twins.recorded.params()]
    messages = []
    for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
        with pytest.raises(SingaNetError) as caught:
            net.step(x, np.where(y == y[0], 5, y), optimizer)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "'out'" in messages[0]
    for param, (value, is_state) in zip(twins.recorded.params(), before, strict=True):
        assert is_state or np.array_equal(param.value, value)
    twins.expect_equal()
    for x, y in data[3:]:
        twins.step(x, y)


def test_an_input_of_a_wrong_shape_is_refused_before_anything():
    twins = Twins(image_net, adam)
    data = image_batches(4)
    for x, y in data[:3]:
        twins.step(x, y)
    with pytest.raises(ShapeError, match="'conv'"):
        twins.recorded.step(data[3][0][:, :1], data[3][1], twins.optimizers[0])
    twins.expect_equal()
    twins.step(*data[3])


def test_targets_of_another_number_are_refused():
    twins = Twins(image_net, adam)
    data = image_batches(4)
    for x, y in data[:3]:
        twins.step(x, y)
    for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
        with pytest.raises(SingaNetError):
            net.step(data[3][0], data[3][1][:-1], optimizer)
    twins.step(*data[3])


class Breakable(SquaredError):  # noqa: N818
    """A user's loss that raises when it is told to."""

    broken = False

    def forward(self, flag, x, y, weights=None):
        if self.broken:
            raise RuntimeError("broken")
        return super().forward(flag, x, y)


def test_a_failing_loss_leaves_the_net_usable(rng):
    def make():
        net = residual_net()
        net.loss = Breakable()
        return net

    twins = Twins(make, adam)
    for number in range(8):
        x, y = rng.standard_normal((4, 6)), rng.standard_normal((4, 3)).astype(np.float32)
        if number == 4:
            for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
                net.loss.broken = True
                with pytest.raises(RuntimeError, match="broken"):
                    net.step(x, y, optimizer)
                net.loss.broken = False
        twins.step(x, y)
    assert any("loss" in note for note in twins.expect_recorded())


def test_a_failing_metric_leaves_the_parameters():
    twins = Twins(image_net, adam)
    data = image_batches(5)
    for x, y in data[:3]:
        twins.step(x, y)

    def broken(out, y):
        raise RuntimeError("broken")

    for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
        with pytest.raises(RuntimeError, match="broken"):
            net.step(*data[3], optimizer, measure=broken)
    twins.expect_equal()
    twins.step(*data[4])


# -- copies, threads, memory ----------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_of_the_net_records_for_itself(duplicate):
    twins = Twins(image_net, adam)
    data = image_batches(8)
    for x, y in data[:4]:
        twins.step(x, y)
    copied = [duplicate(net) for net in twins.nets]
    assert copied[0].programs.reports() == []
    copied[1].programs.enabled = False
    kept = [value.copy() for value in twins.recorded.param_values()]
    other = Twins(lambda: copied.pop(0), adam)
    other.nets[1].programs.enabled = False
    for x, y in data[4:]:
        other.step(x, y)
    other.expect_recorded()
    for value, then in zip(twins.recorded.param_values(), kept, strict=True):
        np.testing.assert_array_equal(value, then)
    for x, y in data[4:]:
        twins.step(x, y)


def test_threads_have_programs_of_their_own():
    net, batches = image_net(), image_batches(12)
    # Parameters are filled at the first use, which is one thread's.
    assert net.param_values()
    twin = image_net()
    twin.programs.enabled = False
    wanted = [twin.forward(False, x) for x, _ in batches]
    wrong = []

    together = threading.Barrier(3)

    def work():
        together.wait()
        for _ in range(10):
            for (x, _), out in zip(batches, wanted, strict=True):
                if not np.array_equal(net.forward(False, x), out):
                    wrong.append(out)

    threads = [threading.Thread(target=work) for _ in range(3)]
    # Threads take turns at nearly every instruction.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
    assert len(net.programs.reports()) == 3


def test_cleared_programs_are_recorded_again():
    twins = Twins(image_net, adam)
    data = image_batches(8)
    for x, y in data[:4]:
        twins.step(x, y)
    twins.recorded.programs.clear()
    assert twins.recorded.programs.reports() == []
    for x, y in data[4:]:
        twins.step(x, y)
    twins.expect_recorded()


def test_cleared_programs_give_their_memory_back():
    data = image_batches(4, batch=256)
    # Imports, and what NumPy and Python keep for good.
    twins = Twins(image_net, adam)
    for x, y in data:
        twins.step(x, y)
        twins.forward(False, x)
    del twins
    net, optimizer = image_net(), adam()
    net.step(*data[0], optimizer)
    gc.collect()
    tracemalloc.start()
    try:
        for x, y in data:
            net.step(x, y, optimizer)
            net.forward(False, x)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        net.programs.clear()
        gc.collect()
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # An image's four maps of 4 × 4, forward and back, are 2 KB at the least.
    assert held > 256 * 2048
    assert left < 200_000


def test_switched_off_in_the_middle():
    twins = Twins(image_net, adam)
    for number, (x, y) in enumerate(image_batches(9)):
        twins.recorded.programs.enabled = number // 3 != 1
        twins.step(x, y)


NETS = [
    "mlp", "lenet", "resnet20", "preresnet20", "lstm", "char_rnn", "transformer", "wide_deep",
    "deepfm", "autoencoder",
]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in {"lenet", "lstm"} else pytest.mark.slow) for n in NETS],
)
@pytest.mark.full
def test_ready_nets_in_the_callers_loop(name, rng):
    twins = Twins(lambda: singanet.models.build(name, seed=0), adam)
    net = twins.recorded

    def drawn(array):
        if array.dtype.kind != "f":
            return rng.integers(0, 2, array.shape).astype(array.dtype)
        return rng.standard_normal(array.shape).astype(array.dtype)

    for _ in range(4):
        x = {
            key: [drawn(part) for part in value] if isinstance(value, list) else drawn(value)
            for key, value in ones(net._execution_plan(), 2, net.device, 5).items()
        }
        outs = twins.both(lambda net, _, x=x: net.forward(True, x))
        expect_same(*outs)
        dy = {key: drawn(out) for key, out in outs[0].items()} if isinstance(
            outs[0], dict) else drawn(outs[0])  # fmt: skip
        for one, optimizer in zip(twins.nets, twins.optimizers, strict=True):
            for item in one.backward(dy):
                optimizer.update(*item)
        twins.expect_equal()
        twins.forward(False, x)
    twins.expect_recorded()


def test_batches_with_gaps_have_the_bits_of_the_layers():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((24, 50), np.float32), rng.integers(0, 9, 24)
    made = []
    for recorded in (True, False):
        net = singanet.FeedForwardNet(
            [Dense("a", 500, input_sample_shape=(50,)), Activation("relu"), Dense("b", 9)],
            loss=SoftmaxCrossEntropy(), seed=1,
        )  # fmt: skip
        net.programs.enabled = recorded
        optimizer = SGD(lr=0.1)
        for _ in range(3):
            net.step(x[::2], y[::2], optimizer)
        assert len(net.programs.reports()) == recorded
        made.append(net.param_values())
    for one, other in zip(*made, strict=True):
        np.testing.assert_array_equal(one, other)


def test_two_threads_may_drop_the_same_program():
    """Each looks for the oldest beyond the capacity, and both may find the same."""
    net = singanet.FeedForwardNet([Dense("a", 3, input_sample_shape=(2,))], seed=0)
    x = np.ones((4, 2), np.float32)
    for _ in range(3):
        net.forward(False, x)
    ((key, program),) = net.programs._every()
    net.programs._drop(key, program)
    net.programs._drop(key, program)
    assert net.programs.reports() == []
    np.testing.assert_array_equal(net.forward(False, x), net.forward(False, x))


@pytest.mark.parametrize(
    ("at_once", "firsts"), [(False, [True, False, False]), (True, [False] * 3)]
)
def test_what_no_program_will_follow_does_not_give_memory_back_at_once(
    at_once, firsts, monkeypatch
):
    seen: list[bool] = []
    real = Programs._before_recording
    monkeypatch.setattr(
        Programs, "_before_recording", lambda self, first: seen.append(first) or real(self, first)
    )
    net = image_net()
    net.programs.at_once = at_once
    none = image_batches(1)[0][0][:0]
    for _ in range(3):
        net.forward(False, none)
    assert net.programs.refusals == ["a batch of no samples"]
    assert seen == firsts


def test_a_first_call_by_the_layers_does_not_run_beside_the_arena(monkeypatch):
    """Of other micro-batches: both together took as much as two arenas."""
    taken: list[int] = []
    net, rule = image_net(), Accumulator(SGD(lr=0.1), 3)
    x, y = image_batches(1)[0]
    real = net.programs._layers.train

    def train(*given):
        taken.append(sum(map(len, net.programs._arena._free)))
        return real(*given)

    monkeypatch.setattr(net.programs._layers, "train", train)
    for _ in range(9):
        net.step(x, y, rule)
    assert taken
    assert not any(taken)
    assert net.programs._arena._free
