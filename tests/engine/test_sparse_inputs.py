"""Sparse matrices fed to nets and executors, beside the same numbers in arrays."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import singanet
from singanet import Executor, FeedForwardNet, Input
from singanet.data import ArrayLoader
from singanet.device import Device
from singanet.errors import ArgumentError, CallOrderError, DataError, GraphError, ShapeError
from singanet.executor import from_loader, gradients
from singanet.layers import Activation, Add, Dense, Dropout, Dummy
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import MeanAbsoluteError
from singanet.ops import ops_for
from singanet.optimizer import SGD, Adam
from singanet.testing import communicators
from singanet.types import RowSparse

COLUMNS = 12


def table(rows=20, seed=0, density=0.2):
    """A CSR matrix with an empty row, duplicates, explicit zeros and indices in disorder."""
    rng = np.random.default_rng(seed)
    counts = rng.binomial(COLUMNS, density, rows)
    counts[rows // 2] = 0
    indptr = np.concatenate([[0], np.cumsum(counts)])
    values = rng.standard_normal(indptr[-1]).astype(np.float32)
    values[::7] = 0
    indices = rng.integers(0, COLUMNS, indptr[-1])
    return scipy.sparse.csr_array((values, indices, indptr), shape=(rows, COLUMNS))


def labels(rows=20, seed=0):
    return np.random.default_rng([seed, 1]).integers(0, 3, rows)


def scores(x, transposed=False, bias=True):
    hidden = Dense("a", 5, use_bias=bias, W_transpose=transposed)(x)
    return Dense("b", 3)(Activation("r", "tanh")(hidden))


def net(sparse, **given):
    x = Input("x", (COLUMNS,), sparse=sparse)
    return FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=scores(x, **given), seed=0)


def assert_close(one, other, tolerance=1e-5):
    theirs = {param.name: param.value for param in other.params()}
    for param in one.params():
        np.testing.assert_allclose(
            param.value, theirs[param.name], rtol=tolerance, atol=tolerance, err_msg=param.name
        )


@settings(max_examples=12, deadline=None)
@given(
    form=st.sampled_from(["csr", "csc", "coo"]), rows=st.integers(1, 9), seed=st.integers(0, 50),
    transposed=st.booleans(), bias=st.booleans(), dtype=st.sampled_from(["f4", "f8", "i4", "?"])
)  # fmt: skip
def test_steps_are_those_of_the_same_array(form, rows, seed, transposed, bias, dtype):
    made = [net(sparse, transposed=transposed, bias=bias) for sparse in (True, False)]
    optimizers = [SGD(0.2), SGD(0.2)]
    for k in range(3):
        x, y = table(rows, seed + k).astype(dtype).asformat(form), labels(rows, k)
        found, wanted = (
            one.step(given, y, optimizer)
            for one, given, optimizer in zip(made, (x, x.toarray()), optimizers, strict=True)
        )
        assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    assert_close(*made)


def test_gradients_are_slopes_of_the_loss():
    one = net(True)
    one.as_type("float64")
    x, y = table(6), labels(6)
    feed = {"x": x, "targets": y}
    found = one.gradients("loss", ["a/weight", "a/bias", "x"], feed)
    weight = one["a"].params["weight"]

    def loss(change):
        weight.value += change
        try:
            return one.evaluate(x, y).loss
        finally:
            weight.value -= change

    rng = np.random.default_rng(0)
    for _ in range(4):
        way = rng.standard_normal(weight.shape)
        slope = (loss(1e-6 * way) - loss(-1e-6 * way)) / 2e-6
        assert slope == pytest.approx((np.asarray(found["a/weight"]) * way).sum(), rel=1e-6)
    plain = net(False)
    plain.as_type("float64")
    wanted = plain.gradients("loss", ["x"], {"x": x.toarray(), "targets": y})["x"]
    np.testing.assert_allclose(found["x"], wanted, atol=1e-12)


def test_the_gradient_of_a_weight_has_the_rows_that_were_named():
    one, x = net(True), table()
    seen = {}
    one.step(
        x, labels(), SGD(0.1), lambda item: seen.update(zip(item.names, item.grads, strict=True))
    )
    grad = seen["a/weight"]
    assert isinstance(grad, RowSparse)
    assert grad.indices.tolist() == sorted({*x.indices.tolist()})
    row = scipy.sparse.csr_array(([1.0], [4], [0, 1]), shape=(1, COLUMNS))
    before = one["a"].params["weight"].value.copy()
    one.step(row, np.array([0]), Adam(lr=0.1))
    assert np.flatnonzero((one["a"].params["weight"].value != before).any(axis=1)).tolist() == [4]


def test_fit_evaluate_and_predict_take_sparse_data():
    made, x, y = [net(True), net(False)], table(60), labels(60)
    histories = []
    for one, data in zip(made, (x.tocoo(), x.toarray()), strict=True):
        one.compile(SGD(0.1), metrics=["accuracy"])
        histories.append(
            one.fit(data, y, epochs=3, batch_size=8, validation_split=0.2, verbose=False)
        )
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=1e-4)
    assert made[0].evaluate(x, y).loss == pytest.approx(made[0].evaluate(x, y, 7).loss)
    whole = made[0].predict(x.tocsc())
    np.testing.assert_allclose(made[0].predict(x, 7), whole, atol=1e-6)
    np.testing.assert_allclose(made[0].predictor()(x), whole, atol=1e-6)
    dense = made[1]
    for param, value in zip(dense.params(), made[0].param_values(), strict=True):
        param.value[...] = value
    np.testing.assert_allclose(dense.predict(x.toarray()), whole, atol=1e-5)


def test_an_executor_is_fed_by_loaders_of_sparse_data():
    data = table(24)
    executors = []
    for x_data in (data.tocoo(), data.toarray()):
        x, y = from_loader(ArrayLoader(x_data, labels(24), 8, seed=3))
        loss = SoftmaxCrossEntropy()(scores(x), y)
        programs = {
            "train": [loss, SGD(0.1).minimize(loss)],
            "slopes": gradients(loss, ["a/weight", x]),
        }
        executors.append((Executor(programs, seed=0), x, y))
    for _ in range(7):
        values = [executor.run("train")[0] for executor, _, _ in executors]
        assert values[0] == pytest.approx(values[1], rel=1e-5)
    assert_close(executors[0][0].net, executors[1][0].net)
    slopes = [
        executor.run("slopes", {x: given, y: labels(24)})
        for (executor, x, y), given in zip(executors, (data, data.toarray()), strict=True)
    ]
    for one, other in zip(*slopes, strict=True):
        np.testing.assert_allclose(np.asarray(one), other, atol=1e-6)


def test_ranks_reduce_the_rows_that_any_of_them_named():
    one, own = net(False), SGD(0.3)
    batches = [(table(6, k), labels(6, k)) for k in range(3)]
    batches.append((table(1, 7), labels(1, 7)))
    for x, y in batches:
        one.step(x.toarray(), y, own)

    def trained(communicator):
        x, y = Input("x", (COLUMNS,), sparse=True), Input("y", (), dtype="int64")
        loss = SoftmaxCrossEntropy()(scores(x), y)
        programs = {"train": [loss, SGD(0.3).minimize(loss)]}
        executor = Executor(programs, seed=0, parallel=communicator)
        for matrix, targets in batches:
            # Of the last batch the second rank has no sample.
            mine = slice(communicator.rank, None, 2)
            executor.run("train", {x: matrix[mine], y: targets[mine]})
        return executor.net

    with communicators(2) as ranks:
        for found in ranks.run(trained):
            assert_close(found, one)


def test_sparse_and_plain_inputs_meet_behind_dense_layers():
    x, z = Input("x", (COLUMNS,), sparse=True), Input("z", (4,))
    shared = Dense("shared", 3)
    outputs = Add("sum")(shared(x), Dense("other", 3)(z))
    both = FeedForwardNet(inputs=[x, z], outputs=outputs, seed=0)
    data, plain = table(5), np.ones((5, 4), np.float32)
    made = both.forward(False, {"x": data, "z": plain})
    wanted = data.toarray() @ both["shared"].params["weight"].value
    wanted += plain @ both["other"].params["weight"].value
    np.testing.assert_allclose(made, wanted, atol=1e-5)


def test_on_a_device_steps_are_those_of_the_host(xp):
    made, x, y = [net(True), net(True)], table(), labels()
    made[1].to_device(Device("like", ops_for(xp.zeros(1))))
    for _ in range(3):
        found = [
            one.step(x, given, SGD(0.1))[0]
            for one, given in zip(made, (y, xp.asarray(y)), strict=True)
        ]
        assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert isinstance(made[1].forward(False, x), type(xp.zeros(1)))


def test_it_is_kept_in_files(tmp_path):
    one, x = net(True), table()
    one.save_model(tmp_path / "net.singanet")
    again = singanet.load_model(tmp_path / "net.singanet")
    np.testing.assert_array_equal(again.predict(x), one.predict(x))
    assert again["x"].traits.sparse


def test_steps_run_by_the_layers_and_the_reason_is_told():
    one, x, y = net(True), table(), labels()
    optimizer = SGD(0.1)
    for _ in range(4):
        one.step(x, y, optimizer)
    assert not one.programs.reports()
    assert "the sparse input 'x'" in one.programs.refusals[0]


@pytest.mark.parametrize("wrong", [np.zeros((4, COLUMNS), np.float32), [[0.0] * COLUMNS], None])
def test_a_sparse_input_refuses_arrays(wrong):
    with pytest.raises(ArgumentError, match="'x', input: expected a sparse matrix of SciPy"):
        net(True).forward(False, wrong)


def test_an_input_of_arrays_refuses_what_is_sparse():
    with pytest.raises(ArgumentError, match=r"'x', input: expected an array.*sparse=True"):
        net(False).forward(False, table())


def test_other_sizes_and_types_are_refused():
    one = net(True)
    with pytest.raises(ShapeError, match=r"expected an array of shape \(batch, 12\)"):
        one.forward(False, table()[:, :5])
    with pytest.raises(ArgumentError, match="expected numbers; received an array of type complex"):
        one.forward(False, table().astype(complex))
    broken = table()
    broken.indices[3] = 99
    with pytest.raises(DataError, match="'x', input: expected a sparse matrix whose entries"):
        one.forward(False, broken)
    with pytest.raises(DataError, match="SoftmaxCrossEntropy: expected a dense array of targets"):
        one.step(table(), scipy.sparse.csr_array(np.eye(20, 3)), SGD(0.1))


@pytest.mark.parametrize("layer", [Activation("r"), Dropout("d"), Dummy("e")])
def test_layers_that_are_no_dense_refuse_it_by_name(layer):
    kind = type(layer).__name__
    with pytest.raises(GraphError, match=f"'{layer.name}', a {kind}.*sparse input 'x'"):
        FeedForwardNet([Dummy("x", (COLUMNS,), sparse=True), layer])
    x = Input("x", (COLUMNS,), sparse=True)
    with pytest.raises(GraphError, match=f"a {kind}.*put a Dense between"):
        Executor({"look": [type(layer)(layer.name)(x)]})


def test_it_is_no_output_and_nothing_to_measure():
    x = Input("x", (COLUMNS,), sparse=True)
    shown = Dense("a", COLUMNS)(x)
    for asked in ([shown, x], [MeanAbsoluteError()(shown, x)]):
        with pytest.raises(GraphError, match="output 'x'.*received a sparse input"):
            Executor({"look": asked}).run("look", {x: table()})


@pytest.mark.parametrize(("shape", "dtype"), [((3, 4), None), ((), None), ((4,), "int64")])
def test_only_vectors_of_floats_are_sparse(shape, dtype):
    with pytest.raises(ShapeError, match=r"floats of sample shape \(n,\)"):
        Input("x", shape, dtype, sparse=True)


def test_what_is_planned_by_shapes_alone_is_refused():
    one = net(True)
    for ask in (lambda: one.memory(4), lambda: one.summary(batch_size=4)):
        with pytest.raises(ArgumentError, match=r"'x': .*received a sparse input"):
            ask()
    with pytest.raises(CallOrderError, match="the sparse input 'x'"):
        one.record(table())
