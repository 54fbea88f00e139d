"""Evaluations, predictions and single batches, and the arrays that are taken."""

import pickle
from functools import partial

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, metric
from singanet.data import ArrayLoader
from singanet.engine.feeds import as_array
from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError, UnknownNameError
from singanet.layers import Concat, Dense, Input
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import F1, Accuracy, ConfusionMatrix, MeanAbsoluteError
from singanet.optimizer import SGD
from singanet.training.batches import by_name, input_names, output_names, sample_count
from singanet.training.callbacks import EarlyStopping


@pytest.fixture
def sk():
    return pytest.importorskip("sklearn.metrics", reason="compares: pip install '.[peers]'")


def test_in_batches_as_in_one_go(build, data):
    net, (x, y) = build(), data
    net.metric = F1()
    (loss, score), whole = net.evaluate(x, y), net.predict(x)
    wanted = (pytest.approx(loss, rel=1e-5), pytest.approx(score))
    for size in (1, 7, 50, 99):
        assert net.evaluate(x, y, batch_size=size) == wanted
        parts = net.predict(x, batch_size=size)
        assert parts.shape == whole.shape
        np.testing.assert_allclose(parts, whole, atol=1e-6)
    # Over a source of batches, too.
    loader = ArrayLoader(x, y, 16, shuffle=False)
    assert net.evaluate(loader) == wanted
    for source in (loader, (x[k : k + 10] for k in range(0, 50, 10))):
        np.testing.assert_allclose(net.predict(source, batch_size=1), whole, atol=1e-6)


def test_32_samples_at_a_time_unless_said_otherwise(build, data, monkeypatch):
    net, seen = build(), []
    (x, y), forward = data, net.forward
    monkeypatch.setattr(net, "forward", lambda flag, x: seen.append(len(x)) or forward(flag, x))
    for call in (lambda **size: net.predict(x, **size), lambda **size: net.evaluate(x, y, **size)):
        for size in ({}, {"batch_size": None}, {"batch_size": 50}):
            seen.clear()
            call(**size)
            assert seen == ([50] if size else [32, 18])


def test_targets_by_the_name_of_an_output(build, data):
    net = build()
    (name,) = (node.name for node in net.nodes() if not node.consumers)
    assert net.evaluate(data[0], {name: data[1]}) == net.evaluate(*data)
    for batch_size in (None, 8):
        with pytest.raises(DataError, match="first axis is the samples"):
            net.evaluate(data[0], 1, batch_size)


def test_evaluating_does_not_disturb_what_a_metric_gathers(build, data):
    net = build()
    net.metric.update(net.forward(False, data[0][:10]), data[1][:10])
    before = net.metric.result()
    net.evaluate(*data, batch_size=8)
    assert (net.metric.result(), net.metric.samples) == (before, 10)


def test_what_is_refused(build, data):
    net = build()
    for size in (0, -1, 2.5):
        with pytest.raises(ArgumentError, match="batch_size"):
            net.evaluate(*data, batch_size=size)
    with pytest.raises(ArgumentError, match="at least one batch"):
        net.predict(iter(()), batch_size=4)
    with pytest.raises(DataError, match="x: 50, y: 49"):
        net.evaluate(data[0], data[1][:49], batch_size=4)
    with pytest.raises(CallOrderError, match="neither"):
        singanet.FeedForwardNet().evaluate(*data)


def test_it_unpacks_and_names_everything(build, data):
    net = build()
    net.compile("adam", None, [Accuracy(), F1(), ConfusionMatrix()])
    right = net.predict(data[0]).argmax(axis=1) == data[1]
    for size in (None, 7):
        found = net.evaluate(*data, batch_size=size)
        loss, score = found
        assert (loss, score) == (found.loss, found.metric) == (found.logs["loss"], right.mean())
        assert list(found.logs)[:3] == ["loss", "accuracy", "f1"]
        made = pickle.loads(pickle.dumps(found))
        assert made == found
        assert list(made.logs) == list(found.logs)
        matrix = found.logs["confusion_matrix"]
        np.testing.assert_array_equal(made.logs["confusion_matrix"], matrix)
        # Whatever the batches are: rows are the labels, and what is right is on the diagonal.
        np.testing.assert_array_equal(matrix.sum(axis=1), np.bincount(data[1], minlength=3))
        assert np.trace(matrix) == right.sum()
        assert repr(found).startswith("Evaluation(loss=")
    net.metric = Accuracy(2)
    found = net.evaluate(*data)
    assert found.metric == found.logs["metric"] >= found.logs["accuracy"]


def several():
    x = Input("x", (4,))
    net = singanet.FeedForwardNet(inputs=x, outputs=[Dense("a", 3)(x), Dense("b", 2)(x)], seed=0)
    loss = MultiLoss({"a": SoftmaxCrossEntropy(), "b": SquaredError()}, {"b": 0.25})
    metrics = {"a": ["accuracy", F1()], "b": {"far": MeanAbsoluteError()}}
    net.compile(SGD(lr=0.1), loss, metrics)
    return net


@pytest.fixture
def outputs():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4)).astype(np.float32)
    return x, {"a": rng.integers(0, 3, 40), "b": rng.normal(size=(40, 2)).astype(np.float32)}


def test_predictions_by_name_are_of_each_output(build, data, outputs):
    net, x = several(), outputs[0]
    for batch_size in (None, 16):
        found = net.predict(x, batch_size, by_name=True)
        assert [*found] == ["a", "b"]
        for name, array in net.predict(x, batch_size).items():
            np.testing.assert_array_equal(found[name], array)
    one = build()
    (found,) = one.predict(data[0], by_name=True).values()
    np.testing.assert_array_equal(found, one.predict(data[0]))
    assert [*one.predict(data[0], by_name=True)] == [one.layers[-1].name]


NAMES = ["loss", "a_loss", "b_loss", "a_accuracy", "a_f1", "b_far"]


def test_of_several_outputs_each_has_its_loss(outputs):
    x, y = outputs
    net = several()
    out = net.forward(False, x)
    p = np.exp(out["a"]) / np.exp(out["a"]).sum(axis=1, keepdims=True)
    a, b = -np.log(p[np.arange(40), y["a"]]).mean(), 0.5 * ((out["b"] - y["b"]) ** 2).mean()
    want = {
        "loss": a + 0.25 * b, "a_loss": a, "b_loss": b,
        "a_accuracy": (out["a"].argmax(axis=1) == y["a"]).mean(),
        "b_far": np.abs(out["b"] - y["b"]).mean(),
    }  # fmt: skip
    for size in (None, 7):
        logs = net.evaluate(x, y, batch_size=size).logs
        assert list(logs) == NAMES
        assert {k: logs[k] for k in want} == pytest.approx(want, rel=1e-5)
    assert net.test_on_batch(x, y) == pytest.approx(logs)


@pytest.mark.parametrize("recorded", [False, True])
def test_the_history_has_them_and_they_can_be_monitored(outputs, recorded):
    x, y = outputs
    net = several()
    net.programs.enabled = recorded
    stop = EarlyStopping("val_b_loss", patience=1)
    history = net.fit(
        x, y, epochs=3, batch_size=16, validation_split=0.25, callbacks=[stop], verbose=False
    )
    assert [name for name in history if name != "lr"] == [*NAMES, *(f"val_{n}" for n in NAMES)]
    total = np.add(history["a_loss"], 0.25 * np.asarray(history["b_loss"]))
    np.testing.assert_allclose(history["loss"], total, rtol=1e-6)
    split = {name: part[30:] for name, part in y.items()}
    last = net.evaluate(x[30:], split).logs["b_loss"]
    assert min(history["val_b_loss"]) == pytest.approx(last, rel=1e-5)


def test_a_saved_model_keeps_which_metric_sees_which_output(outputs, tmp_path):
    x, y = outputs
    net = several()
    net.fit(x, y, verbose=False)
    net.save_model(tmp_path / "m.singanet")
    loaded = singanet.load_model(tmp_path / "m.singanet")
    assert loaded.evaluate(x, y).logs == net.evaluate(x, y).logs


BY_CLASS = {
    "f1": (metric.F1, "f1_score"), "fbeta": (partial(metric.FBeta, 2.0), "fbeta_score"),
    "precision": (metric.PrecisionScore, "precision_score"),
    "recall": (metric.RecallScore, "recall_score"), "iou": (metric.IOU, "jaccard_score"),
}  # fmt: skip
BY_CLASS = {name: (partial(make, average=None), peer) for name, (make, peer) in BY_CLASS.items()}


@pytest.mark.parametrize("first", BY_CLASS)
def test_a_metric_of_one_value_a_class_comes_out_as_an_array(first, sk):
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((40, 4)).astype(np.float32), rng.integers(0, 3, 40)
    make, name = BY_CLASS[first]
    judge = partial(getattr(sk, name), **({"beta": 2.0} if first == "fbeta" else {}))
    net = singanet.FeedForwardNet(
        [Dense("fc", 3, input_sample_shape=(4,))], loss=SoftmaxCrossEntropy(), metric=make(), seed=0
    )
    scores = net.predict(x)
    wanted = judge(y, scores.argmax(1), average=None, zero_division=0)
    found = [make().evaluate(scores, y), net.evaluate(x, y)[1], net.evaluate(x, y, batch_size=7)[1]]
    found += [net.step(x, y, SGD(0.0))[1] for _ in range(3)]
    names = {name: one() for name, (one, _) in BY_CLASS.items()}
    net.compile(SGD(0.0), net.loss, metrics={**names, "right": Accuracy()})
    found += [net.test_on_batch(x, y)[first], net.train_on_batch(x, y)[first]]
    found += [net.evaluate(x, y).logs[first], net.evaluate(x, y, batch_size=7).logs[first]]
    history = net.fit(x, y, validation_data=(x, y), epochs=2, verbose=False)
    assert {*history} == {"loss", "right", "val_loss", "val_right", "lr"}
    found.append(names[first].result())
    inp, labels = Input("x", (4,)), Input("y", (), dtype="int64")
    out = Dense("fc", 3)(inp)
    executor = singanet.Executor({"run": [out, make()(out, labels)]}, seed=0)
    out, score = executor.run("run", {"x": x, "y": y})
    of_program = judge(y, out.argmax(1), average=None, zero_division=0)
    for got, want in zip([*found, score], [wanted] * len(found) + [of_program], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    assert make().evaluate(np.zeros((0, 3), np.float32), np.zeros(0, int)) == 0.0


def test_train_on_batch_is_a_step(build, data, same):
    net, other = build(), build()
    optimizer = SGD(lr=0.1, momentum=0.9)
    for _ in range(3):
        loss, accuracy = other.step(*data, optimizer)
        assert net.train_on_batch(*data) == {
            "loss": pytest.approx(loss, rel=1e-12), "accuracy": accuracy
        }  # fmt: skip
    same(net, other)


def test_test_on_batch_is_an_evaluation_and_leaves_the_net(build, data, same):
    net, untouched = build(metrics=[Accuracy(), F1()]), build()
    found = net.test_on_batch(*data)
    loss, accuracy = net.evaluate(*data)
    assert found["loss"] == pytest.approx(loss, rel=1e-6)
    assert found["accuracy"] == accuracy
    assert found["f1"] == F1().evaluate(net.forward(False, data[0]), data[1])
    same(net, untouched)


def test_weights_of_a_batch(build, data):
    weight = np.arange(50.0)
    net = build()
    x, y = data
    losses = [net.test_on_batch(x[k : k + 1], y[k : k + 1])["loss"] for k in range(50)]
    wanted = np.mean(np.array(losses) * weight)
    assert net.test_on_batch(x, y, weight)["loss"] == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(DataError, match="sample_weight: 49"):
        net.train_on_batch(x, y, weight[:49])


def test_arrays_pass_as_they_are_and_the_rest_is_converted():
    array = np.zeros((2, 3), np.float16)
    assert as_array("x", array) is array
    assert as_array("x", [[1, 2], [3, 4]]).dtype.kind == "i"
    with pytest.raises(DataError, match="one array"):
        as_array("x", [[1], [2, 3]])
    for wrong in (1.0, "text", ["a", "b"], None, [None], np.array(["a"]), np.zeros(2, "M8[s]")):
        with pytest.raises(DataError, match="^x: expected"):
            as_array("x", wrong)


def test_a_tensor_that_wants_gradients_is_detached():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6.0).reshape(2, 3).requires_grad_()
    np.testing.assert_array_equal(as_array("x", tensor), [[0, 1, 2], [3, 4, 5]])


def test_lists_stand_for_layers_only_where_there_are_several():
    a, b = np.zeros((2, 3)), np.ones((2, 4))
    every = partial(by_name, "x", all_of_them=True)
    named = every([a, b], ["left", "right"])
    assert list(named) == ["left", "right"]
    assert named["right"] is b
    assert every([a], ["only"]) is a
    assert every({"only": a}, ["only"]) is a
    # Two samples of three numbers, not arrays for two layers.
    assert every([a[0], a[1]], ["only"]).shape == (2, 3)
    with pytest.raises(ShapeError, match="expected 2 arrays, for 'left', 'right'"):
        every([a], ["left", "right"])
    with pytest.raises(UnknownNameError, match="none for 'right'"):
        every({"left": a}, ["left", "right"])
    with pytest.raises(UnknownNameError, match="did you mean 'left'"):
        every({"lefd": a}, ["left"])
    assert list(by_name("y", {"left": a}, ["left", "right"], all_of_them=False)) == ["left"]


def test_every_array_has_the_samples():
    a = np.zeros((2, 3))
    assert sample_count({"x": {"p": a, "q": a}, "y": a, "sample_weight": None}) == 2
    with pytest.raises(DataError, match=r"x\['q'\]: 1"):
        sample_count({"x": {"p": a, "q": a[:1]}, "y": a})
    with pytest.raises(DataError, match="0 samples in 'x'"):
        sample_count({"x": a[:0]})


def test_lists_go_by_the_order_in_which_symbols_were_given():
    a, b = Input("a", (2,)), Input("b", (3,))
    hidden = Dense("hidden", 4)(b)
    net = FeedForwardNet(inputs=[b, a], outputs=[Concat("joined", 1)(a, hidden), hidden])
    assert input_names(net) == ["b", "a"]
    assert output_names(net) == ["joined", "hidden"]
