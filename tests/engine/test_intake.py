"""Every call takes lists and other libraries' arrays, with the results of NumPy arrays."""

import array

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, Input
from singanet.engine.feeds import own_arrays
from singanet.errors import DataError, ShapeError, SingaNetError, UnknownNameError
from singanet.layers import Concat, Dense, Embedding
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy
from singanet.optimizer import SGD
from singanet.program.prediction.compiled import CompiledNet

pd = pytest.importorskip("pandas", reason="takes frames: pip install '.[peers]'")
torch = pytest.importorskip("torch", reason="takes tensors: pip install '.[peers]'")

X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
Y = np.array([0, 2, 1, 1, 0, 2])
W = np.linspace(0.5, 2, 6, dtype=np.float32)


class ByDlpack:
    """An array that has `__dlpack__` alone."""

    def __init__(self, array):
        self._array = np.ascontiguousarray(array)

    def __dlpack__(self, **named):
        return self._array.__dlpack__(**named)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class ByArray:
    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array


class Buffer(array.array):
    """Numbers of one axis, in a buffer alone."""


KINDS = {
    "buffer": lambda a: memoryview(a) if a.ndim > 1 else Buffer(a.dtype.char, a.tolist()),
    "tensor": torch.from_numpy,
    "with a gradient": lambda a: torch.from_numpy(a).requires_grad_(a.dtype.kind == "f"),
    "every other": lambda a: torch.from_numpy(np.repeat(a, 2, axis=0))[::2],
    "list": lambda a: a.tolist(),
    "list of tensors": lambda a: list(torch.from_numpy(a)) if a.ndim > 1 else a.tolist(),
    "tuple": lambda a: tuple(a.tolist()), "dlpack": ByDlpack, "array": ByArray,
    "pandas": lambda a: pd.DataFrame(a) if a.ndim > 1 else pd.Series(a, index=range(5, 11))
}  # fmt: skip


def made(seed=0):
    net = FeedForwardNet(
        [Dense("fc", 3, input_sample_shape=(4,))], loss=SoftmaxCrossEntropy(), metric=Accuracy(),
        seed=seed,
    )  # fmt: skip
    net.compile(SGD(0.1), net.loss, metrics=[Accuracy()])
    return net


def weights(net):
    return [param.value.copy() for param in net.params()]


def answers(net, x, y, w):
    """The results of all calls that take arrays, by name; calls that train come last."""
    found = {"predict": net.predict(x), "forward": net.forward(False, x)}
    found["predictor"] = net.predictor()(x)
    found["evaluate"] = [net.evaluate(x, y), net.evaluate(x, y, sample_weight=w)]
    found["evaluate in batches"] = net.evaluate(x, y, batch_size=4, sample_weight=w)
    if not isinstance(x, (list, tuple)):
        # Lists and tuples stand for batches.
        found["predict in batches"] = net.predict(x, batch_size=4)
        if not isinstance(x, pd.DataFrame):
            feed = {"input": x, "targets": y, "sample_weight": w}
            grads = net.gradients("loss", ["fc/weight", "input"], feed)
            found |= {f"gradient of {name}": grad for name, grad in grads.items()}
    grads, found["train"] = net.train(x, y)
    found |= {f"train, {k}": grad for k, grad in enumerate(grads)}
    found["test_on_batch"] = [*net.test_on_batch(x, y, w).values()]
    found["train_on_batch"] = [*net.train_on_batch(x, y, w).values()]
    for k in range(3):
        found[f"step {k}"] = net.step(x, y, SGD(0.1), sample_weight=w)
    net.fit(x, y, batch_size=3, sample_weight=w, verbose=False, epochs=2)
    return found | {f"fit, {k}": value for k, value in enumerate(weights(net))}


def expect_same(found, wanted):
    for name, got in found.items():
        np.testing.assert_array_equal(got, wanted[name], err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_arrays_come_they_give_what_numpys_give(kind):
    take = KINDS[kind]
    if kind == "pandas":
        wanted = answers(made(), pd.DataFrame(X), Y, W)
    else:
        wanted = answers(made(), X, Y, W)
    expect_same(answers(made(), take(X), take(Y), take(W)), wanted)


def test_mapped_files(tmp_path):
    arrays = []
    for k, plain in enumerate((X, Y, W)):
        arrays.append(np.memmap(tmp_path / str(k), plain.dtype, "w+", shape=plain.shape))
        arrays[-1][:] = plain
    expect_same(answers(made(), *arrays), answers(made(), X, Y, W))


def test_arrays_whose_memory_allows_it_are_not_copied():
    for take in (torch.from_numpy, ByDlpack, ByArray, memoryview):
        assert np.shares_memory(own_arrays("it", take(X)), X)
    raw = array.array("f", X[:, 0])
    assert np.shares_memory(own_arrays("it", raw), np.frombuffer(raw, "f4"))


def test_a_predictor_reads_mapped_files_batch_by_batch(tmp_path, monkeypatch):
    x = np.memmap(tmp_path / "x", np.float32, "w+", shape=(70, 4))
    x[:] = np.random.default_rng(0).standard_normal(x.shape)
    predict, plain, sizes = made().predictor(), CompiledNet.__call__, []

    def seen(self, x, **named):
        sizes.append(len(x))
        return plain(self, x, **named)

    monkeypatch.setattr(CompiledNet, "__call__", seen)
    found = [predict(x), predict({"fc": x}), predict(np.asarray(x))]
    assert sizes == [32, 32, 6, 32, 32, 6, 70]
    for each in found:
        np.testing.assert_allclose(each, found[-1], rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_set_by_arrays_of_others(kind):
    if kind == "pandas":
        pytest.skip("a frame is samples")
    net, weight = made(), np.arange(12, dtype=np.float32).reshape(4, 3)
    bias, before = net.params()[1].value.copy(), net.predict(X)
    net.step(X, Y, SGD(0.0))
    net.set_params({"fc/weight": KINDS[kind](weight)})
    assert np.array_equal(net.params()[0].value, weight)
    assert np.array_equal(net.params()[1].value, bias)
    assert not np.array_equal(net.predict(X), before)


@pytest.mark.parametrize(("values", "error", "words"), [
    ({"fc/wight": np.ones((4, 3))}, UnknownNameError, "did you mean 'fc/weight'"),
    ({"fc/weight": np.ones((3, 4))}, ShapeError, r"shape \(4, 3\); received shape \(3, 4\)"),
    ({"fc/weight": "ones"}, DataError, "an array of numbers of shape"),
    ({"fc/weight": np.full((4, 3), 1j)}, DataError, "numbers"),
])  # fmt: skip
def test_unfit_values_of_parameters_change_nothing(values, error, words):
    net = made()
    before = weights(net)
    with pytest.raises(error, match=words):
        net.set_params({"fc/bias": np.ones(3), **values})
    assert all(map(np.array_equal, weights(net), before))


def test_a_gradient_and_directions_of_pytorch():
    found = []
    for take in (np.asarray, torch.from_numpy):
        net = made()
        out = net.forward(True, take(X))
        grads = [g for item in net.backward(take(np.ones_like(out))) for g in item.grads]
        dys = take(np.full_like(out, 0.5))
        grads += net.gradients("fc", ["fc/weight"], take(X), dys).values()
        found.append(grads)
    for got, want in zip(*found, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("take", [torch.from_numpy, lambda a: a.tolist(), ByDlpack, ByArray])
def test_several_inputs_and_outputs(take):
    found = []
    for each in (lambda a: a, take):
        a, b = Input("a", (4,)), Input("b", (2,))
        both = Concat("both", 1)(a, b)
        outputs = [Dense("kind", 3)(both), Dense("size", 1)(both)]
        losses = MultiLoss({"kind": SoftmaxCrossEntropy(), "size": SquaredError()})
        net = FeedForwardNet(inputs=[a, b], outputs=outputs, loss=losses, seed=0)
        x = {"a": each(X), "b": each(X[:, :2])}
        y = {"kind": each(Y), "size": each(X[:, :1])}
        predicted = net.predict(x)
        assert np.array_equal(
            net.predict([x["a"], np.asarray(X[:, :2])])["kind"], predicted["kind"]
        )
        told = [net.evaluate(x, y)[0]]
        told += [net.step(x, y, SGD(0.1))[0] for _ in range(3)]
        found.append([*predicted.values(), *told, *weights(net), *net.predictor()(x).values()])
    for got, want in zip(*found, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("take", [torch.from_numpy, lambda a: a.tolist(), ByArray])
def test_a_program_of_an_executor_and_a_decoder(take):
    inp, labels = Input("x", (4,)), Input("y", (), dtype="int64")
    scores = Dense("fc", 3)(inp)
    loss = SoftmaxCrossEntropy()(scores, labels)
    program = [scores, loss, Accuracy()(scores, labels)]
    executor = singanet.Executor({"run": program}, seed=0)
    wanted = executor.run("run", {"x": X, "y": Y})
    for got, want in zip(executor.run("run", {inp: take(X), "y": take(Y)}), wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    ids = np.array([[1, 2, 3], [3, 0, 1]])
    net = FeedForwardNet([Embedding("e", 5, 4, input_sample_shape=(-1,)), Dense("d", 2)], seed=0)
    np.testing.assert_array_equal(net.decoder()(take(ids)), net.predict(ids))


def test_bfloat16_is_widened_exactly():
    half = torch.from_numpy(X).to(torch.bfloat16)
    np.testing.assert_array_equal(made().predict(half), made().predict(half.float().numpy()))


def test_what_is_no_array_of_numbers_is_refused_by_name():
    net = made()
    for wrong in ([[1.0], [1.0, 2.0]], ["a", "b"], torch.from_numpy(X).to_sparse()):
        for ask in (net.predict, lambda x: net.step(x, Y, SGD(0.1)), net.predictor()):
            with pytest.raises(DataError, match="x: expected"):
                ask(wrong)
    before = weights(net)
    with pytest.raises(DataError, match="net.step, y"):
        net.step(X, ["a"] * 6, SGD(0.1))
    with pytest.raises(SingaNetError):
        net.predict(None)
    assert all(map(np.array_equal, before, weights(net)))
