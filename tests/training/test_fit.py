import gc
import itertools
import traceback
import weakref

import numpy as np
import pytest

import singanet
from singanet.data import ArrayLoader, Prefetch
from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError, UnknownNameError
from singanet.layers import BatchNormalization, Dense, Flatten
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import F1, Accuracy, ConfusionMatrix
from singanet.optimizer import (
    SGD,
    Accumulator,
    AdamW,
    ClipByGlobalNorm,
    ClipByValue,
    L2Regularizer,
    Muon,
    schedules,
)
from singanet.training import Callback, StopTraining
from singanet.training.callbacks import LearningRate, ModelCheckpoint
from tests.kit.callbacks import at
from tests.kit.files import bytes_of
from tests.kit.nets import values_of
from tests.kit.ranks import expect_near_values


def by_hand(net, x, y, epochs=1, batch=16, first=0, optimizer=None, **given):
    """The streaming loop that fit is said to run; what its steps measured."""
    loader = ArrayLoader(x, y, batch, seed=net.seed, **given)
    loader.set_epoch(first)
    optimizer = optimizer or SGD(lr=0.1, momentum=0.9)
    return [net.step(*pair, optimizer) for _ in range(epochs) for pair in loader]


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


def fit(net, data, *callbacks, **given):
    """A fit that says nothing."""
    return net.fit(*data, callbacks=callbacks, verbose=False, **given)


def test_fit_is_the_streaming_loop_to_the_bit(build, data, same):
    net, pieces, later, other = (build() for _ in range(4))
    fit(net, data, batch_size=16, epochs=3)
    for _ in range(3):
        fit(pieces, data, batch_size=16)
    by_hand(other, *data, 3)
    same(net, other)
    same(pieces, other)
    history, other = fit(later, data, batch_size=16, epochs=5, initial_epoch=3), build()
    by_hand(other, *data, 2, first=3)
    assert history.epochs == [3, 4]
    same(later, other)


def test_the_history_is_what_the_steps_measured(build, data, same):
    net, other = build(), build()
    history = fit(net, data, batch_size=20, shuffle=False)
    measured = by_hand(other, *data, batch=20, shuffle=False)
    same(net, other)
    losses, right = np.array([20, 20, 10]) / 50 @ np.array(measured)
    assert history["loss"] == [pytest.approx(losses, rel=1e-12)]
    assert history["accuracy"] == [pytest.approx(right, rel=1e-12)]
    assert history.stopped is None


def test_a_split_keeps_the_last_samples_back(build, data, same):
    net, other, given = build(), build(), build()
    (x, y), held = data, (data[0][40:], data[1][40:])
    history = fit(net, data, batch_size=16, epochs=2, validation_split=0.2)
    by_hand(other, x[:40], y[:40], 2)
    same(net, other)
    same_history = fit(given, (x[:40], y[:40]), batch_size=16, epochs=2, validation_data=held)
    assert same_history == history
    loss, accuracy = net.evaluate(*held)
    assert history["val_loss"][-1] == pytest.approx(loss, rel=1e-6)
    assert history["val_accuracy"][-1] == accuracy


def test_metrics_are_exact_over_batches_of_unequal_size(build, data):
    matrix = ConfusionMatrix()
    net, order = build(metrics=[F1(), matrix]), np.argsort(data[1], kind="stable")
    # Labels sorted, so that batches differ in their classes and a mean of their F1s would be off.
    x, y = (part[order] for part in data)
    history = fit(net, (x, y), batch_size=15, validation_data=(x, y))
    taken = net.predict(x).argmax(1)
    both = [(taken == c, y == c) for c in range(3)]
    scores = [2 * (a & b).sum() / (a.sum() + b.sum()) for a, b in both]
    assert history["val_f1"] == [pytest.approx(np.mean(scores))]
    # One that is no number is asked after the fit.
    assert sorted(history) == ["f1", "loss", "lr", "val_f1", "val_loss"]
    assert matrix.result().sum() == 50
    assert np.trace(matrix.result()) == (taken == y).sum()


def test_schedules_by_epoch_go_on_over_fits_and_files(build, data, tmp_path):
    x, y = data

    def rates(epoch):
        return 0.1 * 0.5**epoch

    def trained(optimizer, *callbacks, **given):
        net = build(optimizer=optimizer)
        net.fit(x, y, 16, 2, verbose=False, callbacks=callbacks, **given)
        return net

    plan = schedules.Step(0.1, 1, 0.5, by="epoch")
    net = trained(SGD(plan, momentum=0.9), ModelCheckpoint(tmp_path))
    history = net.fit(x, y, 16, 2, verbose=False)
    assert history["lr"] == pytest.approx([0.025, 0.0125])
    other = trained(SGD(0.1, momentum=0.9), LearningRate(rates))
    other.fit(x, y, 16, 2, verbose=False, callbacks=[LearningRate(lambda k: rates(k + 2))])
    np.testing.assert_equal(values_of(net), values_of(other))
    resumed = build(optimizer=SGD(schedules.Step(0.1, 1, 0.5, by="epoch"), momentum=0.9))
    again = ModelCheckpoint(tmp_path / "again")
    resumed.fit(x, y, 16, 4, verbose=False, resume=tmp_path, callbacks=[again])
    np.testing.assert_equal(values_of(net), values_of(resumed))


def test_every_schedule_by_epoch_learns_the_epoch(build, data):
    plans = [schedules.Step(1e-3, 1, by="epoch") for _ in range(3)]
    rule = AdamW(plans[0], regularizer=L2Regularizer(plans[1]))
    net = build(optimizer=ClipByGlobalNorm(Muon(plans[2], others=rule), 1.0))
    net.fit(*data, 16, 3, verbose=False)
    assert [plan.epoch for plan in plans] == [2, 2, 2]


def test_a_weight_of_two_is_a_sample_counted_twice(data):
    """By linearity of the gradient: weights (2, 0) on a batch are those of the first half."""
    x, y = data
    nets, weight = [], np.r_[np.full(25, 2.0), np.zeros(25)]
    for count, given in ((50, {"sample_weight": weight}), (25, {})):
        net = singanet.FeedForwardNet([Dense("fc", 3, input_sample_shape=(5,))], seed=1)
        net.compile(SGD(lr=0.5), SoftmaxCrossEntropy())
        fit(net, (x[:count], y[:count]), batch_size=count, shuffle=False, **given)
        nets.append(values_of(net))
    expect_near_values(*nets, 1e-7, 1e-6)


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}])
def test_weights_of_positions_are_those_of_samples_of_one_position(options, rng):
    x = rng.standard_normal((12, 3, 4)).astype(np.float32)
    y, weight = rng.integers(0, 3, (12, 3)), rng.uniform(0, 2, (12, 3)).astype(np.float32)
    whole = singanet.FeedForwardNet([Dense("fc", 3, input_sample_shape=(3, 4))], seed=1)
    apart = singanet.FeedForwardNet([Dense("fc", 3, input_sample_shape=(4,))], seed=1)
    losses, flat = [], (x.reshape(36, 4), y.reshape(36), weight.reshape(36))
    for net, size, given in ((whole, 4, (x, y, weight)), (apart, 12, flat)):
        net.compile(SGD(lr=0.5), SoftmaxCrossEntropy())
        more = options | {"sample_weight": given[2], "shuffle": False, "verbose": False}
        losses.append(net.fit(*given[:2], size, 2, **more)["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)
    expect_near_values(values_of(apart), values_of(whole), 1e-4, 1e-6)


def test_class_weights_are_sample_weights_by_label(build, data, same):
    x, y = data
    nets, weights = [build() for _ in range(3)], np.where(y == 1, 3.0, 1.0).astype(np.float32)
    fit(nets[0], data, class_weight={1: 3.0})
    fit(nets[1], data, sample_weight=weights)
    fit(nets[2], (x, np.eye(3, dtype=np.float32)[y]), class_weight={1: 3.0})
    same(nets[0], nets[1])
    expect_near_values(values_of(nets[0]), values_of(nets[2]), 1e-7, 1e-5)


@pytest.mark.parametrize("way", ["LayerNorm", "RunningNorm", "Value"])
def test_clipping_and_accumulation_wrap_the_optimizer(build, data, same, way):
    net, other, wrapper = build(), build(), getattr(singanet.optimizer, f"ClipBy{way}")
    way = way.removesuffix("Norm").lower()
    for _ in range(2):
        fit(net, data, batch_size=10, clip=0.01, clip_by=way, accumulate=3)
    optimizer = Accumulator(wrapper(SGD(lr=0.1, momentum=0.9), 0.01), 3)
    by_hand(other, *data, 2, batch=10, optimizer=optimizer)
    same(net, other)
    # A clip inside of another is refused before a step.
    net = build(optimizer=ClipByValue(ClipByGlobalNorm(SGD(lr=0.1), 1.0), 1.0))
    for train in (lambda: fit(net, data), lambda: net.train_on_batch(*data)):
        with pytest.raises(ArgumentError, match="received ClipByValue around it"):
            train()
    same(net, build())


def epochs_of(x, y, epoch):
    order = np.random.default_rng([0, epoch]).permutation(len(x))
    return [(x[order[a : a + 16]], y[order[a : a + 16]]) for a in range(0, len(x), 16)]


@pytest.mark.parametrize(
    "form", ["dict", "list", "loader", "prefetch", "function", "iterable", "weighted", "lists"]
)
def test_every_form_of_data_trains_alike(build, data, same, form):
    net, plain = build(), build()
    x, y = data
    epochs = 1 if form in ("iterable", "weighted", "lists") else 2
    plain.fit(x, y, batch_size=16, epochs=epochs, verbose=False)
    batches = epochs_of(x, y, 0)
    given = {
        "dict": ({"fc1": x}, {"fc2": y}), "list": ([x], [y]), "lists": (x.tolist(), y.tolist()),
        "loader": (ArrayLoader(x, y, 16, seed=0),),
        "prefetch": (Prefetch(ArrayLoader(x, y, 16, seed=0)),),
        "function": (lambda epoch: iter(epochs_of(x, y, epoch)),), "iterable": (batches,),
        "weighted": ([(bx, by, np.ones(len(bx))) for bx, by in batches],)
    }[form]  # fmt: skip
    net.fit(*given, batch_size=16, epochs=epochs, verbose=False)
    if form == "lists":
        # Python floats are float64, which is rounded to the same float32.
        assert np.asarray(given[0], np.float32).tobytes() == x.tobytes()
    same(net, plain)


def test_a_torch_loader_is_taken_as_it_is(build, data):
    torch = pytest.importorskip("torch")
    net, other = build(), build()
    tensors = [torch.from_numpy(part) for part in data]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*tensors), batch_size=16)
    fit(net, (loader,), epochs=2)
    fit(other, data, batch_size=16, epochs=2, shuffle=False)
    assert bytes_of(net) == bytes_of(other)
    assert np.isfinite(fit(net, tensors)["loss"]).all()


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
        for k in itertools.count(0, 8):
            rows = np.arange(k, k + 8) % 50
            yield data[0][rows], data[1][rows]

    net, other, optimizer = build(), build(), SGD(lr=0.1, momentum=0.9)
    history = net.fit(forever(), epochs=3, steps_per_epoch=4, verbose=False)
    for batch in itertools.islice(forever(), 12):
        other.step(*batch, optimizer)
    assert len(history["loss"]) == 3
    same(net, other)
    seen = []  # arrays go round
    look = at("on_batch_begin", lambda session, batch: seen.append(session.inputs))
    fit(build(), data, look, batch_size=20, epochs=2, steps_per_epoch=2)
    assert [len(x) for x in seen] == [20, 20, 10, 20]
    assert len(np.unique(np.concatenate(seen[:3]), axis=0)) == 50


def test_hooks_come_in_order(build, data):
    net, probe, moved = build(), Probe(), []
    before = bytes_of(net)

    def look(session, names, values, grads):
        same = [value.tobytes() == before[name] for name, value in zip(names, values, strict=True)]
        moved.extend(not each for each in same)

    fit(net, data, at("on_layer_gradients", look), probe, batch_size=50, validation_data=data)
    assert moved == [False] * 6
    layers = [
        ("fc2", ["fc2/weight", "fc2/bias"], 2, 2), ("drop", [], 0, 0), ("relu", [], 0, 0),
        ("bn", ["bn/gamma", "bn/beta"], 2, 2), ("fc1", ["fc1/weight", "fc1/bias"], 2, 2)
    ]  # fmt: skip
    logs = ["accuracy", "loss", "lr", "val_accuracy", "val_loss"]
    begun, *batch = "epoch 0 begin", "batch 0 begin", *layers, "batch 0 end ['loss']"
    assert probe.seen == ["train begin", begun, *batch, f"epoch 0 end {logs}", "train end"]


def test_stop_training_ends_within_the_step(build, data):
    def stop(*_):
        raise StopTraining("at the first layer")

    net, other = build(), build()
    assert fit(net, data, at("on_layer_gradients", stop)).stopped == "at the first layer"
    net, other = bytes_of(net), bytes_of(other)
    assert all(net[name] == other[name] for name in ("fc1/weight", "fc2/weight"))


def test_what_a_callback_adds_is_recorded(build, data):
    add = at("on_epoch_end", lambda session, epoch, logs: epoch and logs.update(mine=10.0 * epoch))
    history = fit(build(), data, add, epochs=3)
    assert np.isnan(history["mine"][0])
    assert history["mine"][1:] == [10.0, 20.0]


@pytest.mark.parametrize("hook", [
    "on_train_begin", "on_epoch_begin", "on_batch_begin", "on_layer_gradients", "on_batch_end",
    "on_epoch_end", "on_train_end",
])  # fmt: skip
def test_a_callback_that_raises_is_heard_and_the_net_stays_usable(build, data, hook, tmp_path):
    def fail(session, *_):
        # The second step, so that there is something to save.
        if hook.startswith(("on_train", "on_epoch")) or session.step:
            raise RuntimeError("mine")

    net, probe, files = build(), Probe(), ModelCheckpoint(tmp_path / "run")
    callbacks = (
        [at(hook, fail), probe] if hook == "on_train_end" else [probe, files, at(hook, fail)]
    )
    with pytest.raises(RuntimeError, match="^mine$") as caught:
        fit(net, data, *callbacks, batch_size=16)
    assert any(frame.name == "fail" for frame in traceback.extract_tb(caught.value.__traceback__))
    assert probe.seen[-1] == "train end"
    # None of these is a place at which all callbacks have heard of a whole step.
    assert not (tmp_path / "run" / "stopped.npz").exists()
    assert np.isfinite(fit(net, data)["loss"]).all()
    with pytest.raises(CallOrderError, match="running fit"):
        _ = probe.session
    with pytest.raises(CallOrderError, match=r"net\.compile"):
        singanet.FeedForwardNet([Dense("fc", 3)], loss=SoftmaxCrossEntropy()).fit(*data)


@pytest.mark.parametrize(("change", "error", "words"), [
    ({"y": np.zeros(49, int)}, DataError, "x: 50, y: 49"),
    ({"x": np.zeros((0, 5)), "y": np.zeros(0, int)}, DataError, "0 samples"),
    ({"y": None}, ArgumentError, "y=None"),
    ({"x": {"fc": np.zeros((50, 5))}}, UnknownNameError, "did you mean 'fc1'"),
    ({"x": {}}, UnknownNameError, "none for 'fc1'"),
    ({"y": {"fc9": np.zeros(50, int)}}, UnknownNameError, "'fc9'"),
    ({"x": [[1.0, 2.0], [3.0]]}, DataError, "inhomogeneous"), ({"x": "abc"}, DataError, "str"),
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
    ({"batch_size": 0}, ArgumentError, "batch_size"), ({"epochs": 0}, ArgumentError, "epochs"),
    ({"epochs": 2.5}, ArgumentError, "epochs"),
    ({"initial_epoch": -1}, ArgumentError, "initial_epoch"),
    ({"steps_per_epoch": 0}, ArgumentError, "steps_per_epoch"),
    ({"clip": -1.0}, ArgumentError, "max_norm"),
    ({"clip": 1.0, "clip_by": "layers"}, UnknownNameError, "did you mean 'layer'"),
    ({"accumulate": 0}, ArgumentError, "accumulate"),
    ({"callbacks": [Probe]}, ArgumentError, "the class Probe"),
    ({"callbacks": [print]}, ArgumentError, "callbacks"),
    ({"callbacks": Probe()}, ArgumentError, r"a Probe; write callbacks=\[...\]")
])  # fmt: skip
def test_bad_arguments_are_refused_before_a_step(build, data, same, change, error, words):
    net, untouched = build(), build()
    given = {"x": data[0], "y": data[1], "verbose": False, **change}
    with pytest.raises(error, match=words) as caught:
        net.fit(**given)
    assert len(str(caught.value)) < 400
    same(net, untouched)


def test_a_generator_that_raises_keeps_its_traceback(build, data, tmp_path):
    def broken():
        yield data
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone") as caught:
        fit(build(), (broken(),), ModelCheckpoint(tmp_path))
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


def normed(*more):
    layers = [Dense("d", 3, input_sample_shape=(4,)), BatchNormalization("bn", momentum=0.9), *more]
    net = singanet.FeedForwardNet(layers, loss=SquaredError(), seed=0)
    net.compile(SGD(lr=0.1))
    return net


def samples_of(count):
    draws = np.random.default_rng(0)
    return draws.normal(size=(count, 4)), draws.normal(size=(count, 3))


@pytest.mark.parametrize(("samples", "size"), [(33, 32), (33, 8), (1, 32), (5, 1)])
def test_a_last_batch_of_one_is_refused_before_the_first_step(samples, size):
    net, before = normed(), bytes_of(normed())
    words = r"layer 'bn': expected training batches of at least 2 samples; received a last "
    with pytest.raises(DataError, match=words + "batch of 1; omit it with drop_last=True"):
        net.fit(*samples_of(samples), batch_size=size, verbose=False)
    with pytest.raises(DataError, match="drop_last=True"):
        net.fit(ArrayLoader(*samples_of(samples), size), verbose=False)
    assert bytes_of(net) == before


def test_a_last_batch_of_one_is_left_out_or_refused_when_it_comes():
    (x, y), net, other = samples_of(33), normed(), normed()
    net.fit(x, y, batch_size=8, shuffle=False, drop_last=True, verbose=False)
    other.fit(x[:32], y[:32], batch_size=8, shuffle=False, verbose=False)
    assert bytes_of(net) == bytes_of(other)
    with pytest.raises(ArgumentError, match="drop_last"):
        net.fit(ArrayLoader(x, y, 8, drop_last=True), drop_last=True, verbose=False)
    with pytest.raises(DataError, match=r"layer 'bn'.*more than one value per channel"):
        normed().fit(iter([(x[:8], y[:8]), (x[8:9], y[8:9])]), verbose=False)


def test_frozen_or_of_images_one_sample_will_do():
    net, held = normed(Dense("top", 3)), normed()
    net.freeze("top")
    held.layers[1].trainable = False
    for each in (net, held):
        each.fit(*samples_of(9), batch_size=8, verbose=False)
    norm = BatchNormalization("bn", input_sample_shape=(2, 2, 2))
    images = singanet.FeedForwardNet([norm, Flatten("flat")], loss=SquaredError())
    images.compile(SGD(lr=0.1))
    images.fit(np.ones((3, 2, 2, 2)), np.ones((3, 8)), batch_size=2, verbose=False)
    assert all(np.isfinite(value).all() for value in images.param_values())


@pytest.mark.parametrize("y", [
    np.eye(4)[[0, 1, 2]] + np.eye(4)[[1, 1, 3]],  # several labels of a sample
    np.full((3, 4), 0.25), np.array([[0.2, 0.3, 0.1, 0.9]] * 3),
    np.array([[0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]]),  # of the positions of sequences
    np.array([[0, 1, 2, 0]] * 3),
])  # fmt: skip
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


@pytest.mark.parametrize(("batch", "epochs"), [(1, []), (4, [0])])
def test_stop_ends_after_the_step_and_completes_an_epoch_at_its_last(build, data, batch, epochs):
    stop = at("on_batch_end", lambda session, k, logs: k == batch and session.stop("enough"))
    probe = Probe()
    history = fit(build(), data, stop, probe, batch_size=10, epochs=9, validation_data=data)
    assert history.stopped == "enough"
    assert history.epochs == epochs
    assert len(history.get("val_loss", ())) == len(epochs)
    assert sum(str(entry).endswith("end ['loss']") for entry in probe.seen) == batch + 1
    assert probe.seen[-1] == "train end"


@pytest.mark.parametrize(("x", "given", "error", "words"), [
    *((lambda d: [d], {key: value}, ArgumentError, "x yields batches")
      for key, value in {"y": [1], "sample_weight": [1.0], "validation_split": 0.1}.items()),
    *((lambda d, i=item: iter([i]), {}, DataError, r"batches \(x, y\)")
      for item in (1.5, (1,), (1, 2, 3, 4))),
    (lambda d: iter([d] * 3), {"steps_per_epoch": 4}, DataError,
     "4 batches an epoch; received 3, then the end"),
    (lambda d: iter([d] * 3), {"epochs": 2}, DataError, "at least one batch; received none"),
    (lambda d: iter(()), {}, DataError, "none"),
])  # fmt: skip
def test_batches_that_cannot_be_trained_on_are_refused(build, data, x, given, error, words):
    with pytest.raises(error, match=words):
        fit(build(), (x(data),), **given)
