"""Data that tell the net its shapes and columns: the first that are fitted, and frames."""

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, Input
from singanet.data import ArrayLoader, Columns, Table
from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError, UnknownNameError
from singanet.layers import Activation, Concat, Conv2D, Dense, Dropout, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD
from tests.html_check import read_html

NAMES = ("a", "b", "c")


class Own:
    """A frame of no library that anyone knows, as pyarrow calls its parts."""

    def __init__(self, columns):
        self._columns = columns
        self.column_names = list(columns)
        self.columns = list(columns.values())

    def __dataframe__(self):
        raise AssertionError("not asked for")

    def __getitem__(self, name):
        return self._columns[name]


def frame_of(kind, columns):
    if kind == "own":
        return Own(columns)
    package = pytest.importorskip(kind)
    return package.table(columns) if kind == "pyarrow" else package.DataFrame(columns)


kinds = pytest.mark.parametrize("kind", ["own", "pandas", "polars", "pyarrow"])


@pytest.fixture
def columns():
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(12).astype(np.float32) for name in NAMES}


def _net(seed=0):
    net = FeedForwardNet([Dense("fc", 1, input_sample_shape=(3,))], loss=SquaredError(), seed=seed)
    net.compile(SGD(lr=0.1), SquaredError())
    return net


def _two():
    parts = [Input("b", (1,)), Input("a", (1,))]
    net = FeedForwardNet(inputs=parts, outputs=Dense("fc", 1)(Concat("both", 1)(*parts)), seed=0)
    net.compile(SGD(lr=0.1), SquaredError())
    return net


def _weights(net):
    return np.concatenate([value.ravel() for value in net.param_values()])


@pytest.mark.few(1)
@kinds
def test_a_net_with_one_input_takes_the_columns_in_the_order_of_training(kind, columns):
    frame, transposed = (frame_of(kind, {n: columns[n] for n in order}) for order in ("abc", "cab"))
    x, y = np.stack([columns[n] for n in NAMES], 1), columns["a"][:, None] * 2
    net, same = _net(), _net()
    net.fit(frame, y, epochs=2, batch_size=5, validation_data=(transposed, y), verbose=False)
    same.fit(x, y, epochs=2, batch_size=5, validation_data=(x, y), verbose=False)
    np.testing.assert_array_equal(_weights(net), _weights(same))
    assert net.columns == {"fc": NAMES}
    want = same.predict(x)
    np.testing.assert_array_equal(net.predict(transposed), want)
    np.testing.assert_allclose(net.predict(transposed, batch_size=5), want, rtol=1e-6)
    assert net.evaluate(transposed, y) == same.evaluate(x, y)
    assert net.evaluate(transposed, y, batch_size=12).loss == pytest.approx(
        same.evaluate(x, y).loss
    )
    predictor = net.predictor()
    np.testing.assert_array_equal(predictor(transposed), predictor(x))
    np.testing.assert_allclose(predictor(transposed, batch_size=5), predictor(x), rtol=1e-6)
    np.testing.assert_array_equal(net.predict({"fc": transposed}), want)


@pytest.mark.few(1)
@kinds
def test_a_net_with_several_inputs_takes_the_columns_of_their_names(kind, columns):
    frame = frame_of(kind, columns)
    x, y = {name: columns[name][:, None] for name in "ab"}, columns["c"]
    net, same = _two(), _two()
    net.fit(frame, y[:, None], epochs=2, batch_size=5, verbose=False)
    same.fit(x, y[:, None], epochs=2, batch_size=5, verbose=False)
    np.testing.assert_array_equal(_weights(net), _weights(same))
    np.testing.assert_array_equal(net.predict(frame), same.predict(x))
    np.testing.assert_array_equal(net.predictor()(frame), same.predictor()(x))
    with pytest.raises(UnknownNameError, match="none called 'a'"):
        net.predict(frame_of(kind, {name: columns[name] for name in "bc"}))


@pytest.mark.few(1)
@kinds
def test_loaders_hand_out_columns(kind, columns):
    frame, y = frame_of(kind, columns), columns["a"][:, None]
    x = np.stack(list(columns.values()), 1)
    net, same, loop = _net(), _net(), _net()
    net.fit(ArrayLoader(frame, y, 5, seed=3), epochs=2, verbose=False)
    same.fit(ArrayLoader(x, y, 5, seed=3), epochs=2, verbose=False)
    np.testing.assert_array_equal(_weights(net), _weights(same))
    loader, rule = ArrayLoader(frame, y, 5, seed=3), SGD(lr=0.1)
    for _ in range(2):
        for batch, targets in loader:
            loop.step(batch, targets, rule)
    np.testing.assert_array_equal(_weights(loop), _weights(same))
    assert loop.columns == net.columns == {"fc": NAMES}
    many = _two()
    many.fit(ArrayLoader(frame, y, 5), verbose=False)
    found = many.evaluate(ArrayLoader(frame, y, 5, shuffle=False)).loss
    assert found == pytest.approx(many.evaluate(frame, y).loss)


def test_targets_may_be_frames_and_series(columns):
    pandas = pytest.importorskip("pandas")
    # Labels of rows say nothing about places.
    frame = pandas.DataFrame(columns, index=np.arange(12)[::-1])
    net, same = _net(), _net()
    x = frame.to_numpy()
    same.fit(x, x[:, :1], verbose=False)
    for y in (frame[["a"]], frame["a"]):
        net = _net()
        wanted = x[:, :1] if y.ndim == 2 else x[:, 0]
        if y.ndim == 2:
            net.fit(frame, y, verbose=False)
            np.testing.assert_array_equal(_weights(net), _weights(same))
            assert net.evaluate(frame, y).loss == net.evaluate(x, wanted).loss
        batch = next(iter(ArrayLoader(frame, y, 4, seed=1)))[1]
        batch = batch["a"] if y.ndim == 2 else batch
        want = next(iter(ArrayLoader(x, x[:, 0], 4, seed=1)))[1]
        np.testing.assert_array_equal(batch, want)


def test_other_columns_are_refused_and_leave_the_net_as_it_was(columns):
    frame, y, net = Own(columns), columns["a"][:, None], _net()
    with pytest.raises(DataError, match="same number of samples"):
        net.fit(frame, y[:5], verbose=False)
    with pytest.raises(ShapeError, match="expected 3 columns; received a frame of 2"):
        net.fit(Own({name: columns[name] for name in "ab"}), y, verbose=False)
    assert net.columns == {}
    net.fit(frame, y, verbose=False)
    before, other = _weights(net), Own({k: columns[v] for k, v in zip("abd", "abc", strict=True)})
    for use in (net.predict, net.predictor(), lambda x: net.fit(x, y, verbose=False)):
        with pytest.raises(UnknownNameError, match="none called 'c', 'd' besides"):
            use(other)
    np.testing.assert_array_equal(_weights(net), before)
    net.columns.clear()
    net.fit(other, y, verbose=False)
    assert net.columns == {"fc": ("a", "b", "d")}


def test_names_and_kinds_of_columns():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(DataError, match="several called 'a'"):
        _net().predict(pandas.DataFrame(np.zeros((2, 3)), columns=["a", "b", "a"]))
    assert _net().predict(pandas.DataFrame(np.zeros((2, 3)))).shape == (2, 1)
    x = Columns(a=np.array([True, False]), b=np.array([1, 2], np.int8), c=np.array([3, 4], "f4"))
    want = _net().predict(np.array([[1, 1, 3], [0, 2, 4]], np.float32))
    np.testing.assert_array_equal(_net().predict(x), want)
    assert x.rows == 2


@pytest.mark.parametrize(("column", "message"), [
    (["x", "y"], "column 'a': expected numbers; received values of type 'str'"),
    ([1.0, float("nan")], "1 of 2 rows without a number"),
    ([True, None], "received values of type 'bool', 'NoneType'"),
    (np.zeros(2, "M8[s]"), "type datetime64"), (np.zeros((2, 2)), "a value a row"),
    (np.zeros(3), "the same number of rows in all columns; received a: 3, b: 2"),
])  # fmt: skip
def test_what_is_no_number_is_refused(column, message):
    frame = Own({"a": column, "b": np.zeros(2), "c": np.zeros(2)})
    with pytest.raises(DataError, match=message):
        _net().predict(frame)


@pytest.mark.parametrize("names", [("city", "age"), ("categorical", "numeric")])
def test_a_dict_of_raw_columns_is_as_a_frame_for_a_net_with_a_table(names):
    raw = {"city": ["a", "b", "a", None] * 5, "age": [1.0, 2.0, 3.0, 4.0] * 5, "more": [1] * 20}
    table = Table.of({name: raw[name] for name in ("city", "age")})
    frame = Columns({name: np.array(column) for name, column in raw.items()})
    y = np.arange(20, dtype=np.float32).reshape(20, 1)

    def build():
        city, age = Input(names[0], (1,), "int64"), Input(names[1], (1,))
        rows = Flatten("rows")(Embedding("cities", table.vocabulary_size, 3)(city))
        out = Dense("out", 1)(Concat("all", 1)(rows, age))
        net = FeedForwardNet(inputs=[city, age], outputs=out, seed=0)
        net.compile(SGD(lr=0.01), SquaredError())
        net.table = table
        return net

    one, other = build(), build()
    assert one.fit(raw, y, verbose=False) == other.fit(frame, y, verbose=False)
    np.testing.assert_array_equal(one.predict(raw), other.predict(frame))
    np.testing.assert_array_equal(one.predict(raw), one.predict(table(raw, names)))
    assert one.evaluate(raw, y) == other.evaluate(frame, y)
    assert one.predictor()(raw).shape == (20, 1)
    # Of arrays as of lists; what is missing is named, not what is there.
    arrays = {name: np.array(column) for name, column in raw.items()}
    np.testing.assert_array_equal(one.predict(arrays), one.predict(raw))
    np.testing.assert_array_equal(one.predictor()(arrays), one.predictor()(raw))
    for columns in (raw, arrays):
        del columns["age"]
        for call in (one.predict, one.predictor(), lambda x: one.fit(x, y, verbose=False)):
            with pytest.raises(UnknownNameError, match="none called 'age'"):
                call(columns)


def net_of(*parts, build=None):
    net = FeedForwardNet(list(parts), seed=3)
    if build is not None:
        net.build(build)
    net.compile(singanet.optimizer.SGD(lr=0.1), SoftmaxCrossEntropy())
    return net


def dense():
    return [Dense("a", 6), Activation("r"), Dropout("d", 0.2), Dense("b", 3)]


def convolution():
    return Conv2D("c", 2, 3), Flatten("f"), Dense("d", 3)


X = np.random.default_rng(0).standard_normal((24, 5)).astype(np.float32)
Y = np.arange(24) % 3


class Once:
    """An iterable of one iteration."""

    def __init__(self):
        self.batches = iter([(X[i : i + 8], Y[i : i + 8]) for i in (0, 8, 16)])

    def __iter__(self):
        return self.batches


class DrawsAnew:
    """Another order at each iteration, as PyTorch's loaders have."""

    def __init__(self):
        self.rng = np.random.default_rng(1)

    def __iter__(self):
        order = self.rng.permutation(24)
        return ((X[rows], Y[rows]) for rows in np.split(order, 3))


SOURCES = {
    "array": lambda: (X, Y), "list": lambda: (X.tolist(), Y.tolist()),
    "dict": lambda: ({"input": X}, Y), "loader": lambda: (ArrayLoader(X, Y, 8, seed=3), None),
    "batches": lambda: ([(X[i : i + 8], Y[i : i + 8]) for i in (0, 8, 16)], None),
    "iterator": lambda: (iter([(X[:12], Y[:12]), (X[12:], Y[12:])]), None),
    "once": lambda: (Once(), None), "draws anew": lambda: (DrawsAnew(), None),
    "function": lambda: ((lambda epoch: iter([(X[epoch:], Y[epoch:])])), None)
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_it_trains_as_one_that_was_told_its_shape(source, same):
    told, net = net_of(*dense(), build=(5,)), net_of(*dense())
    histories = []
    for each in (told, net):
        x, y = SOURCES[source]()
        histories.append(each.fit(x, y, batch_size=8, verbose=False))
    assert histories[0] == histories[1]
    same(told, net)


def test_a_single_batch_and_other_kinds_of_data(same):
    told, net = net_of(*dense(), build=(5,)), net_of(*dense())
    assert told.train_on_batch(X, Y) == net.train_on_batch(X, Y)
    same(told, net)
    images = net_of(Conv2D("c", 2, 3), Flatten("f"), Dense("d", 3))
    images.fit(np.zeros((6, 1, 4, 4), np.float32), Y[:6], verbose=False)
    assert images.summary().count("(1, 4, 4)")
    words = net_of(Embedding("e", 9, 4), Flatten("f"), Dense("d", 3))
    words.fit(np.zeros((6, 7), np.int64), Y[:6], verbose=False)
    assert words["d"].params["weight"].shape == (28, 3)


def test_data_that_are_refused_leave_it_as_it_was(same):
    told, net, images = net_of(*dense(), build=(5,)), net_of(*dense()), net_of(*convolution())
    with pytest.raises(DataError, match="same number of samples"):
        net.fit(X[:, :2], Y[:3], verbose=False)
    for batches, words in (([], "at least one batch"), ([X], r"\(x, y\)"), ([(X, Y) * 2], "of 4")):
        with pytest.raises(DataError, match=words):
            net.fit(iter(batches), verbose=False)
        assert net.pending
    with pytest.raises(ShapeError):
        images.fit(X, Y, verbose=False)
    images.fit(X.reshape(-1, 1, 5, 1), Y, verbose=False)
    for each in (told, net):
        each.fit(X, Y, batch_size=8, verbose=False)
    same(told, net)


def test_a_step_builds_the_net_and_only_training_does():
    net, images = net_of(*dense()), net_of(*convolution())
    for call in (net.predict, lambda x: net.evaluate(x, Y)):
        with pytest.raises(CallOrderError, match="known input shape"):
            call(X)
    net.step(X, Y, SGD(lr=0.1))
    assert not net.pending
    with pytest.raises(DataError, match="channels last"):
        images.step(np.zeros((2, 6, 6, 3)), Y[:2], SGD(lr=0.1))
    assert images.pending


def test_a_notebook_names_its_layers():
    text = " ".join(read_html(net_of(*dense())._repr_html_()).text)
    for part in dense():
        assert f"{part.name} {type(part).__name__} not built" in text
    assert "without layers" not in text


@pytest.mark.parametrize("kind", ["array", "loader"])
def test_within_a_budget(kind):
    x, y = SOURCES[kind]()
    net, plain = net_of(*dense()), net_of(*dense())
    with pytest.raises(ArgumentError, match="net.fit, memory_budget: expected at least"):
        net.fit(x, y, 8, memory_budget=1, verbose=False)
    assert net.pending  # as before
    found = net.fit(x, y, 8, memory_budget="1GB", verbose=False)
    assert found["loss"] == plain.fit(*SOURCES[kind](), 8, verbose=False)["loss"]


@pytest.mark.parametrize("shape", [(28, 28, 1), (20, 30, 3), (9, 9, 4)])
def test_images_with_channels_last_are_no_maps_of_many_channels(shape):
    x, net = np.zeros((6, *shape), np.float32), net_of(*convolution())
    with pytest.raises(DataError, match=r"channels last.*transpose.*input_shape=.* to 'c'"):
        net.fit(x, Y[:6], verbose=False)
    assert net.pending
    net.fit(x.transpose(0, 3, 1, 2), Y[:6], verbose=False)
    # What is said is taken, and what sees no axes.
    net_of(Conv2D("c", 2, 3, input_sample_shape=shape), Flatten("f"), Dense("d", 3))
    net_of(Flatten("f"), Dense("d", 3)).fit(x, Y[:6], verbose=False)
    net_of(*convolution()).fit(np.zeros((6, 8, 16, 4), np.float32), Y[:6], verbose=False)
