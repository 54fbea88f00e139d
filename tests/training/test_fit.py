import gc
import traceback

import numpy as np
import pytest

import singanet
from singanet.data import ArrayLoader, Prefetch
from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError, UnknownNameError
from singanet.layers import BatchNormalization, Dense, Flatten, TimeDistributed
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import F1, Accuracy, ConfusionMatrix
from singanet.optimizer import (
    SGD,
    Accumulator,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByRunningNorm,
    ClipByValue,
)
from singanet.training import Callback, StopTraining
from singanet.training.callbacks import (
    ModelCheckpoint,
)
from tests.kit.files import bytes_of
from tests.kit.nets import values_of
from tests.kit.ranks import expect_near_values


def by_hand(net, x, y, epochs, batch=16, first=0, optimizer=None):
    """The streaming loop that fit is said to run."""
    loader = ArrayLoader(x, y, batch, seed=net.seed)
    loader.set_epoch(first)
    optimizer = optimizer or SGD(lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for bx, by in loader:
            net.step(bx, by, optimizer)


class Probe(Callback):
    """Notes every hook that is called."""

    def __init__(self):
        self.seen = []

    def on_train_begin(self):
        self.seen.append("train begin")

    def on_train_end(self):
        self.seen.append("train end")

    def on_epoch_begin(self, epoch):
        self.seen.append(f"epoch {epoch} begin")

    def on_epoch_end(self, epoch, logs):
        self.seen.append(f"epoch {epoch} end {sorted(logs)}")

    def on_batch_begin(self, batch):
        self.seen.append(f"batch {batch} begin")

    def on_batch_end(self, batch, logs):
        self.seen.append(f"batch {batch} end {sorted(logs)}")

    def on_layer_gradients(self, names, values, grads):
        self.seen.append((self.session.layer, list(names), len(values), len(grads)))


# -- what it computes ---------------------------------------------------------------------------


def test_fit_is_the_streaming_loop_to_the_bit(build, data, same):
    net, other = build(), build()
    net.fit(*data, batch_size=16, epochs=3, verbose=False)
    by_hand(other, *data, epochs=3)
    same(net, other)


def test_one_fit_in_pieces_is_the_whole(build, data, same):
    whole, pieces = build(), build()
    whole.fit(*data, batch_size=16, epochs=3, verbose=False)
    for _ in range(3):
        pieces.fit(*data, batch_size=16, verbose=False)
    same(whole, pieces)


def test_initial_epoch_goes_on_with_numbers_and_orders(build, data, same):
    net, other = build(), build()
    history = net.fit(*data, batch_size=16, epochs=5, initial_epoch=3, verbose=False)
    by_hand(other, *data, epochs=2, first=3)
    assert history.epochs == [3, 4]
    same(net, other)


def test_without_shuffling_batches_come_in_their_order(build, data, same):
    net, other = build(), build()
    net.fit(*data, batch_size=20, shuffle=False, verbose=False)
    optimizer = SGD(lr=0.1, momentum=0.9)
    for start in (0, 20, 40):
        other.step(data[0][start : start + 20], data[1][start : start + 20], optimizer)
    same(net, other)


def test_the_history_is_what_the_steps_measured(build, data):
    net, other = build(), build()
    history = net.fit(*data, batch_size=20, epochs=1, shuffle=False, verbose=False)
    optimizer = SGD(lr=0.1, momentum=0.9)
    steps = [other.step(data[0][a : a + 20], data[1][a : a + 20], optimizer) for a in (0, 20, 40)]
    weights = np.array([20, 20, 10]) / 50
    assert history["loss"] == [pytest.approx(weights @ [loss for loss, _ in steps], rel=1e-12)]
    assert history["accuracy"] == [pytest.approx(weights @ [acc for _, acc in steps], rel=1e-12)]
    assert history.stopped is None


def test_validation_is_an_evaluation_of_the_whole(build, data):
    net = build()
    x, y = data
    history = net.fit(x[:40], y[:40], validation_data=(x[40:], y[40:]), verbose=False)
    loss, accuracy = net.evaluate(x[40:], y[40:])
    assert history["val_loss"] == [pytest.approx(loss, rel=1e-6)]
    assert history["val_accuracy"] == [accuracy]


def test_a_split_keeps_the_last_samples_back(build, data, same):
    net, other = build(), build()
    history = net.fit(*data, batch_size=16, epochs=2, validation_split=0.2, verbose=False)
    by_hand(other, data[0][:40], data[1][:40], epochs=2)
    same(net, other)
    assert history["val_loss"][-1] == pytest.approx(net.evaluate(data[0][40:], data[1][40:])[0])


def test_metrics_are_exact_over_batches_of_unequal_size(build, data):
    net = build(metrics=[F1()])
    x, y = data
    # Labels sorted, so that batches differ in their classes and a mean of their F1s would be off.
    order = np.argsort(y, kind="stable")
    x, y = x[order], y[order]
    history = net.fit(x, y, batch_size=15, validation_data=(x, y), verbose=False)
    taken = net.predict(x).argmax(1)
    scores = [
        2 * np.sum((taken == c) & (y == c)) / (np.sum(taken == c) + np.sum(y == c))
        for c in range(3)
    ]
    assert history["val_f1"] == [pytest.approx(np.mean(scores))]


def test_a_metric_that_is_no_number_is_asked_after_the_fit(build, data):
    matrix = ConfusionMatrix()
    net = build(metrics=[Accuracy(), matrix])
    history = net.fit(*data, validation_data=data, verbose=False)
    assert sorted(history) == ["accuracy", "loss", "lr", "val_accuracy", "val_loss"]
    counts = matrix.result()
    assert counts.sum() == 50
    assert np.trace(counts) / 50 == history["val_accuracy"][-1]


# -- weights, clipping, accumulation ------------------------------------------------------------


def test_a_weight_of_two_is_a_sample_counted_twice(build, data, same):
    """By linearity of the gradient: weights (2, 0) on a batch are those of the first half."""
    net, other = (
        singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=1),
        singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=1),
    )
    x, y = data
    for each in (net, other):
        each.add(Dense("fc", 3, input_sample_shape=(5,)))
        each.compile(SGD(lr=0.5))
    weight = np.r_[np.full(25, 2.0), np.zeros(25)]
    net.fit(x, y, batch_size=50, shuffle=False, sample_weight=weight, verbose=False)
    other.fit(x[:25], y[:25], batch_size=25, shuffle=False, verbose=False)
    expect_near_values(values_of(net), values_of(other), 1e-7, 1e-6)


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}])
def test_weights_of_positions_are_those_of_samples_of_one_position(options, rng):
    """Steps of sequences, and the same steps as samples of their own."""
    x = rng.standard_normal((12, 3, 4)).astype(np.float32)
    y, weight = rng.integers(0, 3, (12, 3)), rng.uniform(0, 2, (12, 3)).astype(np.float32)
    whole = singanet.FeedForwardNet(
        [TimeDistributed("t", Dense("t_fc", 3), input_sample_shape=(3, 4))], seed=1
    )
    apart = singanet.FeedForwardNet([Dense("fc", 3, input_sample_shape=(4,))], seed=2)
    for ours, other in zip(apart.param_values(), whole.param_values(), strict=True):
        ours[...] = other
    losses = []
    for net, size, given in (
        (whole, 4, (x, y, weight)),
        (apart, 12, (x.reshape(36, 4), y.reshape(36), weight.reshape(36))),
    ):
        net.compile(SGD(lr=0.5), SoftmaxCrossEntropy())
        history = net.fit(
            *given[:2], size, 2, sample_weight=given[2], shuffle=False, verbose=False, **options
        )
        losses.append(history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)
    for ours, other in zip(apart.param_values(), whole.param_values(), strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-4, atol=1e-6)


def test_class_weights_are_sample_weights_by_label(build, data, same):
    x, y = data
    nets = build(), build(), build()
    weights = np.where(y == 1, 3.0, 1.0).astype(np.float32)
    one_hot = np.eye(3, dtype=np.float32)[y]
    nets[0].fit(x, y, class_weight={1: 3.0}, verbose=False)
    nets[1].fit(x, y, sample_weight=weights, verbose=False)
    same(nets[0], nets[1])
    nets[2].fit(x, one_hot, class_weight={1: 3.0}, verbose=False)
    expect_near_values(values_of(nets[0]), values_of(nets[2]), 1e-7, 1e-5)


@pytest.mark.parametrize(
    ("way", "wrapper"),
    [("layer", ClipByLayerNorm), ("running", ClipByRunningNorm), ("value", ClipByValue)],
)
def test_clipping_and_accumulation_wrap_the_optimizer(build, data, same, way, wrapper):
    net, other = build(), build()
    net.fit(*data, batch_size=10, clip=0.01, clip_by=way, accumulate=2, verbose=False)
    optimizer = Accumulator(wrapper(SGD(lr=0.1, momentum=0.9), 0.01), 2)
    by_hand(other, *data, epochs=1, batch=10, optimizer=optimizer)
    same(net, other)


def test_a_clip_inside_of_another_is_refused_before_a_step(build, data):
    for optimizer in (ClipByValue(ClipByGlobalNorm(SGD(lr=0.1), 1.0), 1.0),):
        net = build(optimizer=optimizer)
        before = [value.copy() for value in net.param_values()]
        for train in (lambda net=net: net.fit(*data, verbose=False),
                      lambda net=net: net.train_on_batch(*data)):  # fmt: skip
            with pytest.raises(ArgumentError, match="received ClipByValue around it"):
                train()
        assert all(map(np.array_equal, before, net.param_values()))


def test_micro_batches_left_over_wait_for_the_next_fit(build, data, same):
    net, other = build(), build()
    for _ in range(2):
        net.fit(*data, batch_size=10, accumulate=3, verbose=False)
    optimizer = Accumulator(SGD(lr=0.1, momentum=0.9), 3)
    by_hand(other, *data, epochs=2, batch=10, optimizer=optimizer)
    same(net, other)


# -- forms of data ------------------------------------------------------------------------------


def epochs_of(x, y, epoch):
    order = np.random.default_rng([0, epoch]).permutation(len(x))
    return [(x[order[a : a + 16]], y[order[a : a + 16]]) for a in range(0, len(x), 16)]


@pytest.mark.parametrize(
    "form", ["dict", "list", "loader", "prefetch", "function", "iterable", "weighted", "lists"]
)
def test_every_form_of_data_trains_alike(build, data, same, form):
    """The order of the arrays' loader is drawn from (net seed, epoch), and the seed here is 0."""
    net, plain = build(), build()
    x, y = data
    epochs = 1 if form in ("iterable", "weighted", "lists") else 2
    plain.fit(x, y, batch_size=16, epochs=epochs, verbose=False)
    batches = epochs_of(x, y, 0)
    given = {
        "dict": ({"fc1": x}, {"fc2": y}),
        "list": ([x], [y]),
        "lists": (x.tolist(), y.tolist()),
        "loader": (ArrayLoader(x, y, 16, seed=0),),
        "prefetch": (Prefetch(ArrayLoader(x, y, 16, seed=0)),),
        "function": (lambda epoch: iter(epochs_of(x, y, epoch)),),
        "iterable": (batches,),
        "weighted": ([(bx, by, np.ones(len(bx))) for bx, by in batches],),
    }[form]
    net.fit(*given, batch_size=16, epochs=epochs, verbose=False)
    if form == "lists":
        # Python floats are float64, which is rounded to the same float32.
        assert np.asarray(given[0], np.float32).tobytes() == x.tobytes()
    same(net, plain)


def test_a_torch_loader_is_taken_as_it_is(build, data):
    torch = pytest.importorskip("torch")
    x, y = data
    net, other = build(), build()
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    net.fit(torch.utils.data.DataLoader(pairs, batch_size=16), epochs=2, verbose=False)
    other.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=False)
    assert bytes_of(net) == bytes_of(other)
    history = net.fit(torch.from_numpy(x), torch.from_numpy(y), verbose=False)
    assert np.isfinite(history["loss"]).all()


def test_several_inputs_and_outputs_by_name_and_by_order(rng):
    def make():
        a, b = singanet.Input("a", (3,)), singanet.Input("b", (4,))
        both = singanet.layers.Concat("both", axis=1)([a, b])
        outputs = [Dense("kind", 2)(both), Dense("size", 1)(both)]
        net = singanet.FeedForwardNet(inputs=[a, b], outputs=outputs, seed=3)
        loss = MultiLoss({"kind": SoftmaxCrossEntropy(), "size": SquaredError()})
        net.compile(SGD(lr=0.1), loss, {"kind": Accuracy()})
        return net

    x = {"a": rng.random((20, 3), np.float32), "b": rng.random((20, 4), np.float32)}
    y = {"kind": rng.integers(0, 2, 20), "size": rng.random((20, 1), np.float32)}
    by_name, by_order = make(), make()
    history = by_name.fit(x, y, epochs=2, validation_data=(x, y), batch_size=8, verbose=False)
    other = by_order.fit(
        list(x.values()), list(y.values()), epochs=2, validation_data=(x, y), batch_size=8,
        verbose=False,
    )  # fmt: skip
    assert history == other
    own = ["kind_accuracy", "kind_loss", "loss", "size_loss"]
    assert sorted(history) == sorted([*own, *(f"val_{name}" for name in own), "lr"])
    right = by_name.predict(x)["kind"].argmax(1) == y["kind"]
    assert history["val_kind_accuracy"][-1] == right.mean()
    batched = by_name.predict(x, batch_size=7)
    for name, whole in by_name.predict(x).items():
        np.testing.assert_allclose(batched[name], whole, atol=1e-6)


def test_an_endless_generator_is_cut_into_epochs(build, data, same):
    def forever():
        k = 0
        while True:
            rows = np.arange(k, k + 8) % 50
            yield data[0][rows], data[1][rows]
            k += 8

    net, other = build(), build()
    history = net.fit(forever(), epochs=3, steps_per_epoch=4, verbose=False)
    optimizer, source = SGD(lr=0.1, momentum=0.9), forever()
    for _ in range(12):
        other.step(*next(source), optimizer)
    assert len(history["loss"]) == 3
    same(net, other)


def test_steps_go_on_through_the_data_and_around(build, data):
    net, seen = build(), []

    class Look(Callback):
        def on_batch_begin(self, batch):
            seen.append(self.session.inputs)

    net.fit(*data, batch_size=20, epochs=2, steps_per_epoch=2, callbacks=[Look()], verbose=False)
    assert [len(x) for x in seen] == [20, 20, 10, 20]
    assert len(np.unique(np.concatenate(seen[:3]), axis=0)) == 50


# -- hooks --------------------------------------------------------------------------------------


def test_hooks_come_in_order(build, data):
    net, probe = build(), Probe()
    net.fit(*data, batch_size=32, validation_data=data, callbacks=[probe], verbose=False)
    layers = [
        ("fc2", ["fc2/weight", "fc2/bias"], 2, 2), ("drop", [], 0, 0), ("relu", [], 0, 0),
        ("bn", ["bn/gamma", "bn/beta"], 2, 2), ("fc1", ["fc1/weight", "fc1/bias"], 2, 2),
    ]  # fmt: skip
    logs = ["accuracy", "loss", "lr", "val_accuracy", "val_loss"]
    assert probe.seen == [
        "train begin",
        "epoch 0 begin",
        *("batch 0 begin", *layers, "batch 0 end ['loss']"),
        *("batch 1 begin", *layers, "batch 1 end ['loss']"),
        f"epoch 0 end {logs}",
        "train end",
    ]


def test_gradients_are_seen_before_they_are_applied(build, data):
    net = build()
    before = {
        name: value.copy()
        for name, value in zip(net.param_names(), net.param_values(), strict=True)
    }
    seen = []

    class Look(Callback):
        def on_layer_gradients(self, names, values, grads):
            for name, value in zip(names, values, strict=True):
                np.testing.assert_array_equal(value, before[name])
                seen.append(name)

    net.fit(*data, batch_size=len(data[1]), callbacks=[Look()], verbose=False)
    assert set(seen) <= set(before)
    assert "fc1/weight" in seen


def test_stop_ends_after_the_step(build, data):
    class Stop(Callback):
        def on_batch_end(self, batch, logs):
            if batch == 1:
                self.session.stop("enough")

    net, probe = build(), Probe()
    history = net.fit(*data, batch_size=10, epochs=9, callbacks=[Stop(), probe], verbose=False)
    assert history.stopped == "enough"
    assert history.epochs == []
    assert sum(str(entry).endswith("end ['loss']") for entry in probe.seen) == 2
    assert probe.seen[-1] == "train end"


def test_a_stop_at_the_last_step_completes_the_epoch(build, data):
    class Stop(Callback):
        def on_batch_end(self, batch, logs):
            if batch == 4:
                self.session.stop("enough")

    history = build().fit(
        *data, batch_size=10, epochs=9, validation_data=data, callbacks=[Stop()], verbose=False
    )
    assert history.epochs == [0]
    assert len(history["val_loss"]) == 1


def test_stop_training_ends_within_the_step(build, data):
    class Stop(Callback):
        def on_layer_gradients(self, names, values, grads):
            raise StopTraining("at the first layer")

    net, other = build(), build()
    assert net.fit(*data, callbacks=[Stop()], verbose=False).stopped == "at the first layer"
    for name in ("fc1/weight", "fc2/weight"):
        k = net.param_names().index(name)
        assert np.array_equal(net.param_values()[k], other.param_values()[k])


def test_what_a_callback_adds_is_recorded(build, data):
    class Add(Callback):
        def on_epoch_end(self, epoch, logs):
            if epoch:
                logs["mine"] = 10.0 * epoch

    history = build().fit(*data, epochs=3, callbacks=[Add()], verbose=False)
    assert np.isnan(history["mine"][0])
    assert history["mine"][1:] == [10.0, 20.0]


@pytest.mark.parametrize(
    "hook",
    [
        "on_train_begin", "on_epoch_begin", "on_batch_begin", "on_layer_gradients",
        "on_batch_end", "on_epoch_end",
    ],
)  # fmt: skip
def test_a_callback_that_raises_is_heard_and_the_net_stays_usable(build, data, hook, tmp_path):
    class Bad(Callback):
        pass

    def fail(self, *args):
        # The second step, so that there is something to save.
        if hook.startswith(("on_train", "on_epoch")) or self.session.step:
            raise RuntimeError("mine")

    setattr(Bad, hook, fail)
    net, probe = build(), Probe()
    folder = tmp_path / "run"
    with pytest.raises(RuntimeError, match="^mine$") as caught:
        net.fit(
            *data, batch_size=16, callbacks=[probe, ModelCheckpoint(folder), Bad()], verbose=False
        )
    assert any(frame.name == "fail" for frame in traceback.extract_tb(caught.value.__traceback__))
    assert probe.seen[-1] == "train end"
    # None of these is a place at which all callbacks have heard of a whole step.
    assert not (folder / "stopped.npz").exists()
    assert np.isfinite(net.fit(*data, verbose=False)["loss"]).all()
    with pytest.raises(CallOrderError, match="running fit"):
        _ = probe.session


def test_an_error_at_the_end_is_raised_after_all_have_ended(build, data):
    class Bad(Callback):
        def on_train_end(self):
            raise RuntimeError("mine")

    probe = Probe()
    with pytest.raises(RuntimeError, match="mine"):
        build().fit(*data, callbacks=[Bad(), probe], verbose=False)
    assert probe.seen[-1] == "train end"


# -- bad input ----------------------------------------------------------------------------------


def test_fit_needs_compile(data):
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy())
    net.add(Dense("fc", 3, input_sample_shape=(5,)))
    with pytest.raises(CallOrderError, match="net.compile"):
        net.fit(*data)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"y": np.zeros(49, int)}, DataError, "x: 50, y: 49"),
        ({"x": np.zeros((0, 5)), "y": np.zeros(0, int)}, DataError, "0 samples"),
        ({"y": None}, ArgumentError, "y=None"),
        ({"x": {"fc": np.zeros((50, 5))}}, UnknownNameError, "did you mean 'fc1'"),
        ({"x": {}}, UnknownNameError, "none for 'fc1'"),
        ({"y": {"fc9": np.zeros(50, int)}}, UnknownNameError, "'fc9'"),
        ({"x": [[1.0, 2.0], [3.0]]}, DataError, "inhomogeneous"),
        ({"x": "abc"}, DataError, "str"),
        ({"sample_weight": np.ones(49)}, DataError, "sample_weight: 49"),
        ({"sample_weight": np.ones((50, 1))}, DataError, r"shape \(50, 1\)"),
        ({"class_weight": {0: -1.0}}, ArgumentError, "class_weight"),
        ({"class_weight": [1.0, 2.0]}, ArgumentError, "class_weight"),
        ({"validation_split": -0.1}, ArgumentError, "validation_split"),
        ({"validation_split": 0.99}, DataError, "0 to train on and 50 to validate"),
        ({"validation_split": 1.0}, ArgumentError, "validation_split"),
        ({"validation_split": 0.1, "validation_data": (1, 2)}, ArgumentError, "both"),
        ({"validation_data": np.zeros((3, 5))}, ArgumentError, "validation_data"),
        ({"validation_data": (np.zeros((3, 5)), [0, 1])}, DataError, "x: 3, y: 2"),
        ({"batch_size": 0}, ArgumentError, "batch_size"),
        ({"epochs": 0}, ArgumentError, "epochs"),
        ({"epochs": 2.5}, ArgumentError, "epochs"),
        ({"initial_epoch": -1}, ArgumentError, "initial_epoch"),
        ({"steps_per_epoch": 0}, ArgumentError, "steps_per_epoch"),
        ({"clip": -1.0}, ArgumentError, "max_norm"),
        ({"clip": 1.0, "clip_by": "layers"}, UnknownNameError, "did you mean 'layer'"),
        ({"accumulate": 0}, ArgumentError, "accumulate"),
        ({"callbacks": [Probe]}, ArgumentError, "the class Probe"),
        ({"callbacks": [print]}, ArgumentError, "callbacks"),
        ({"callbacks": Probe()}, ArgumentError, r"a Probe; write callbacks=\[...\]"),
    ],
)
def test_bad_arguments_are_refused_before_a_step(build, data, same, change, error, words):
    net, untouched = build(), build()
    given = {"x": data[0], "y": data[1], "verbose": False, **change}
    with pytest.raises(error, match=words) as caught:
        net.fit(**given)
    assert len(str(caught.value)) < 400
    same(net, untouched)


@pytest.mark.parametrize(
    "change", [{"y": [1]}, {"sample_weight": [1.0]}, {"validation_split": 0.1}]
)
def test_what_only_arrays_can_use_is_refused_with_batches(build, data, change):
    with pytest.raises(ArgumentError, match="x yields batches"):
        build().fit([data], verbose=False, **change)


@pytest.mark.parametrize("item", [1.5, (1,), (1, 2, 3, 4)])
def test_batches_are_pairs_or_triples(build, data, item):
    with pytest.raises(DataError, match=r"batches \(x, y\)"):
        build().fit(iter([item]), verbose=False)


def test_a_generator_that_ends_early_says_after_how_many(build, data):
    net = build()
    with pytest.raises(DataError, match="4 batches an epoch; received 3, then the end"):
        net.fit((data for _ in range(3)), steps_per_epoch=4, verbose=False)
    with pytest.raises(DataError, match="at least one batch; received none"):
        net.fit((data for _ in range(3)), epochs=2, verbose=False)
    with pytest.raises(DataError, match="none"):
        net.fit(iter(()), verbose=False)


def test_a_generator_that_raises_keeps_its_traceback(build, data, tmp_path):
    def broken():
        yield data
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone") as caught:
        build().fit(broken(), callbacks=[ModelCheckpoint(tmp_path)], verbose=False)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "broken"
    assert (tmp_path / "stopped.npz").exists()


def test_a_metric_that_does_not_fit_names_layer_and_shapes(build, data):
    net = build(metrics=[singanet.metric.AUC()])
    with pytest.raises(ShapeError, match=r"'fc2'.*AUC.*\(32, 3\)") as caught:
        net.fit(*data, verbose=False)
    assert len(str(caught.value)) < 400
    net.compile(SGD(lr=0.1), metrics={"fc2": Accuracy(), "loss2": Accuracy(2)})
    assert np.isfinite(net.fit(*data, verbose=False)["loss2"]).all()


def test_a_fit_leaves_nothing_behind(build, data):
    """Neither the data nor the session survive in the net or in a callback that is kept."""
    import weakref

    net, probe = build(), Probe()
    x = data[0].copy()
    alive = weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        net.fit(x, data[1], callbacks=[probe], verbose=False)
        del x
        assert alive() is None
    finally:
        gc.enable()


def test_verbose_writes_a_line_an_epoch(build, data, capsys):
    build().fit(*data, epochs=2, validation_data=data)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("epoch 2/2  loss ")
    assert "val_accuracy" in lines[1]


class TestLastBatches:
    """What is left over at the end of an epoch, where batch normalisation looks at it."""

    def made(self):
        layers = [Dense("d", 3, input_sample_shape=(4,)), BatchNormalization("bn", momentum=0.9)]
        net = singanet.FeedForwardNet(layers, loss=SquaredError(), seed=0)
        net.compile(SGD(lr=0.1))
        return net

    def data(self, samples):
        draws = np.random.default_rng(0)
        return draws.normal(size=(samples, 4)), draws.normal(size=(samples, 3))

    @pytest.mark.parametrize(("samples", "size"), [(33, 32), (33, 8), (1, 32), (5, 1)])
    def test_one_sample_is_refused_before_the_first_step(self, samples, size):
        net = self.made()
        before = [value.copy() for value in net.param_values()]
        words = r"layer 'bn': expected training batches of at least 2 samples; received a last "
        with pytest.raises(DataError, match=words + "batch of 1; omit it with drop_last=True"):
            net.fit(*self.data(samples), batch_size=size, verbose=False)
        loader = ArrayLoader(*self.data(samples), size)
        with pytest.raises(DataError, match="drop_last=True"):
            net.fit(loader, verbose=False)
        assert all(map(np.array_equal, before, net.param_values()))

    def test_left_out_the_epoch_is_that_of_the_samples_before_it(self):
        x, y = self.data(33)
        net, other = self.made(), self.made()
        net.fit(x, y, batch_size=8, shuffle=False, drop_last=True, verbose=False)
        other.fit(x[:32], y[:32], batch_size=8, shuffle=False, verbose=False)
        assert all(map(np.array_equal, net.param_values(), other.param_values()))
        with pytest.raises(ArgumentError, match="drop_last"):
            net.fit(ArrayLoader(x, y, 8, drop_last=True), drop_last=True, verbose=False)

    def test_a_generators_batch_of_one_is_refused_when_it_comes(self):
        x, y = self.data(9)
        net = self.made()
        with pytest.raises(DataError, match=r"layer 'bn'.*more than one value per channel"):
            net.fit(iter([(x[:8], y[:8]), (x[8:], y[8:])]), verbose=False)

    def test_frozen_or_of_images_one_sample_will_do(self):
        net = self.made()
        net.add(Dense("top", 3))
        net.freeze("top")
        net.fit(*self.data(9), batch_size=8, verbose=False)
        held = self.made()
        held.layers[1].trainable = False
        held.fit(*self.data(9), batch_size=8, verbose=False)
        images = singanet.FeedForwardNet(
            [BatchNormalization("bn", input_sample_shape=(2, 2, 2)), Flatten("flat")],
            loss=SquaredError(),
        )
        images.compile(SGD(lr=0.1))
        images.fit(np.ones((3, 2, 2, 2)), np.ones((3, 8)), batch_size=2, verbose=False)
        assert all(np.isfinite(value).all() for value in images.param_values())


@pytest.mark.parametrize(
    "y",
    [
        np.eye(4)[[0, 1, 2]] + np.eye(4)[[1, 1, 3]],  # several labels of a sample
        np.full((3, 4), 0.25),
        np.array([[0.2, 0.3, 0.1, 0.9]] * 3),
        np.array([[0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]]),  # of the positions of sequences
        np.array([[0, 1, 2, 0]] * 3),
    ],
)
def test_class_weights_of_targets_that_are_no_classes(y):
    net = singanet.FeedForwardNet([Dense("d", 4, input_sample_shape=(2,))], loss=SquaredError())
    net.compile(SGD(lr=0.1))
    with pytest.raises(DataError, match="or one-hot rows"):
        net.fit(np.ones((3, 2)), y, class_weight={1: 10.0}, verbose=False)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_rate_in_the_history_is_that_of_the_last_update(build, data, accumulate):
    net = build(optimizer=SGD(lr=lambda step: 0.1 / (1 + step)))
    history = net.fit(*data, batch_size=10, epochs=3, accumulate=accumulate, verbose=False)
    batches = len(data[0]) // 10
    updates = [batches * (epoch + 1) // accumulate for epoch in range(3)]
    assert history["lr"] == [pytest.approx(0.1 / count) for count in updates]
    assert SGD(lr=0.3).rate() == 0.3
    assert SGD(lr=None).rate() is None
