"""Nets whose Embeddings are served, in one process: steps, fits, loops, files."""

import copy
import pickle
import tracemalloc

import numpy as np
import pytest

import singanet
from singanet.errors import ArgumentError, CallOrderError, DataError
from singanet.layers import Add, Cache, Dense, Embedding, Flatten, Input, Slice
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, AdaGrad, Adam, ClipByLayerNorm, ClipByValue
from singanet.optimizer.averaged import Averaged
from singanet.parallel import Hybrid
from singanet.training.callbacks import ModelCheckpoint
from tests.kit.nets import values_of, words_net
from tests.kit.ranks import expect_near_values, expect_same_bits, expect_same_values

EXACT, BOUNDED = Cache("lfu", 15, 0, 0), Cache("lru", 15, 4, 4)
CACHES = pytest.mark.parametrize("cache", [None, EXACT])
RNG = np.random.default_rng(0)
BATCHES = [(RNG.integers(0, 50, (8, 3)), RNG.integers(0, 4, 8)) for _ in range(12)]
X, Y = (np.concatenate(parts) for parts in zip(*BATCHES, strict=True))


def trained(net, optimizer, count=12):
    return [net.step(x, y, optimizer)[0] for x, y in BATCHES[:count]]


def by_tables(cache=None, make=lambda: SGD(lr=0.5), **net):
    net, hybrid = words_net(cache=cache, **net), Hybrid(make())
    trained(net, hybrid)
    return net, hybrid


def expect_as_in_memory(make, served, plain):
    hybrid = Hybrid(make())
    assert trained(served, hybrid) == trained(plain, make())
    expect_same_bits([served, plain])
    return hybrid


@CACHES
@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(lr=0.5, momentum=0.9, weight_decay=1e-3),
        lambda: Adam(lr=0.05),
        lambda: AdaGrad(lr=0.3),
        lambda: ClipByValue(SGD(lr=0.5), 0.01),
        lambda: ClipByLayerNorm(SGD(lr=0.5), 0.1),
    ],
)
def test_steps_are_those_of_a_table_in_memory(make, cache):
    plain, served = words_net(), words_net(cache=cache)
    expect_as_in_memory(make, served, plain)
    assert served.programs.refusals == []
    assert served.programs.notes == plain.programs.notes
    assert len(served.programs.reports()) == 1


@CACHES
def test_padding_stays_zero_in_tables_and_caches(cache):
    assert (X == 3).any()
    plain, served = (words_net(cache=each, padding_index=3) for each in (None, cache))
    expect_as_in_memory(lambda: Adam(lr=0.05), served, plain)
    assert not values_of(served)["e/weight"][3].any()


@CACHES
def test_layers_that_share_a_table_and_slices_of_ids(cache):
    def net(cache):
        x = Input("x", (3,), dtype="int64")
        left, right = Slice("parts", 1, [1])(x)
        first = Embedding("one", 50, 4, cache=cache)
        made = [first(left)]
        made.append(Embedding("two", 50, 4, W_specs=first.params["weight"], cache=cache)(right))
        made.append(Embedding("three", 50, 12, cache=cache)(right))
        scores = [Dense(f"fc{k}", 4)(Flatten(f"flat{k}")(each)) for k, each in enumerate(made)]
        return singanet.FeedForwardNet(
            loss=SoftmaxCrossEntropy(), inputs=x, outputs=Add("sum")(*scores), seed=2
        )

    served = net(cache)
    hybrid = expect_as_in_memory(lambda: SGD(lr=0.5), served, net(None))
    assert sorted(hybrid.lookups) == ["one/weight", "three/weight"]
    assert served.programs.notes == served.programs.refusals == []


def test_bounded_rows_train_nearly_the_same():
    plain, served, optimizer = words_net(), words_net(cache=BOUNDED), Hybrid(SGD(lr=0.5))
    np.testing.assert_allclose(trained(served, optimizer), trained(plain, SGD(lr=0.5)), rtol=1e-5)
    told = optimizer.lookups["e/weight"]
    assert 0 < told.hits < told.rows
    assert told.nbytes < told.nbytes_uncached * 1.5
    expect_near_values(values_of(served), values_of(plain), 0, 1e-5)


def test_a_loop_of_ones_own_by_layers_is_the_same():
    plain, served = words_net(), words_net(cache=EXACT)
    optimizer, hybrid = SGD(lr=0.5), Hybrid(SGD(lr=0.5))
    hybrid.meet(served)
    for x, y in BATCHES:
        for net, rule in ((plain, optimizer), (served, hybrid)):
            net.loss.forward(True, net.forward(True, x), y)
            for item in net.backward(net.loss.backward()):
                rule.update(*item)
    expect_same_bits([served, plain])


@pytest.mark.parametrize("cache", [None, EXACT, BOUNDED])
def test_fit_evaluates_and_predicts_by_the_tables(cache):
    plain, served = words_net(), words_net(cache=cache)
    histories = []
    for net, optimizer in ((plain, SGD(lr=0.5)), (served, Hybrid(SGD(lr=0.5)))):
        net.compile(optimizer, metrics=["accuracy"])
        histories.append(net.fit(X, Y, 16, 3, validation_data=(X, Y), verbose=False))
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(histories[1][name], histories[0][name], rtol=1e-5)
    predicted = served.predict(X)
    np.testing.assert_allclose(predicted, plain.predict(X), rtol=1e-4, atol=1e-6)
    # A predictor keeps the rows of its time.
    predictor = served.predictor()
    for _ in range(2):
        np.testing.assert_allclose(predictor(X[:8]), predicted[:8], rtol=1e-5, atol=1e-7)
        trained(served, served.compiled.optimizer, 3)


def test_a_training_goes_on_from_its_checkpoint_with_the_tables_and_their_state(tmp_path):
    def fitted(folder, epochs, resume=None):
        net, kept = words_net(cache=EXACT), ModelCheckpoint(tmp_path / folder)
        net.compile(Hybrid(Adam(lr=0.05)))
        net.fit(X, Y, 16, epochs, callbacks=[kept], resume=resume, verbose=False)
        return values_of(net)

    fitted("first", 2)
    expect_same_values([fitted("second", 4, tmp_path / "first"), fitted("whole", 4)])


def test_hyper_parameters_that_are_assigned_reach_tables_and_caches():
    plain, served, optimizer = words_net(), words_net(cache=EXACT), SGD(lr=0.5)
    hybrid = Hybrid(SGD(lr=0.5))
    trained(plain, optimizer)
    trained(served, hybrid)
    optimizer.lr = hybrid.optimizer.lr = 0.01
    assert trained(served, hybrid) == trained(plain, optimizer)
    expect_same_bits([served, plain])


def test_evaluation_and_refused_ids_change_neither_cache_nor_count():
    net, optimizer = by_tables(BOUNDED)
    rows = net.params()[0].served
    count, held = rows.lookups.rows, rows._row_of.copy()
    net.forward(False, X[::5])
    assert not rows.gathered.any()
    before, told = values_of(net), copy.copy(rows.lookups)
    assert told.rows == count
    for wrong in (50, -1):
        x, y = BATCHES[0][0].copy(), BATCHES[0][1]
        x[2, 1] = wrong
        with pytest.raises(DataError, match=r"position \(2, 1\)"):
            net.step(x, y, optimizer)
    assert told == rows.lookups
    np.testing.assert_array_equal(rows._row_of, held)
    expect_same_values([values_of(net), before])


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "singanet"])
def test_files_have_the_rows_of_the_tables(tmp_path, suffix):
    (net, _), path = by_tables(BOUNDED), tmp_path / f"net.{suffix}"
    if suffix == "singanet":
        net.save_model(path)
        other = singanet.load_model(path)
        assert repr(other.layers[0].cache) == repr(BOUNDED)
        expect_same_bits([other, net])
        return
    net.save(path)
    other, served = words_net(seed=9), by_tables(BOUNDED, seed=9)[0]
    for each in (other, served):
        each.load(path)
        expect_same_bits([each, net])
    np.testing.assert_array_equal(served.forward(False, X), other.forward(False, X))


def wide_net(rows):
    layers = [Embedding("emb", rows, 32, input_sample_shape=(6,)), Flatten("flat"), Dense("fc", 3)]
    return singanet.FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=3)


def test_a_table_is_streamed_into_a_file_of_a_net_that_never_had_it(tmp_path, monkeypatch):
    """No more of it is in the worker's memory than a piece, here 1 of 16 MB."""
    net = wide_net(1 << 17)
    monkeypatch.setattr("singanet.parallel.cached_rows._PIECE", 1 << 20)
    Hybrid(SGD(lr=0.5)).meet(net)
    table = net.params()[0]
    assert table.value.strides == (0, 0)
    tracemalloc.start()
    net.save(tmp_path / "net.safetensors")
    net.save_model(tmp_path / "net.singanet")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 5e6
    expect_same_bits([singanet.load_model(tmp_path / "net.singanet"), net, wide_net(1 << 17)])


def test_values_that_a_net_had_go_into_the_table(tmp_path):
    pretrained, net = words_net(seed=4), words_net(seed=5)
    trained(pretrained, SGD(lr=0.5))
    pretrained.save(tmp_path / "net.npz")
    net.load(tmp_path / "net.npz")
    Hybrid(SGD(lr=0.5)).meet(net)
    expect_same_bits([net, pretrained])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_of_a_net_has_its_rows_in_memory(copied):
    net, _ = by_tables(BOUNDED)
    other, before = copied(net), values_of(net)
    assert other.params()[0].served is None
    expect_same_bits([other, net])
    trained(other, SGD(lr=0.5))
    expect_same_values([values_of(net), before])


def test_a_frozen_table_stays_in_memory():
    net, hybrid = words_net(), Hybrid(SGD(lr=0.5))
    net.layers[0].trainable = False
    trained(net, hybrid)
    assert hybrid.lookups == {}


def test_what_reads_all_rows_is_not_served():
    def tied(cache=None):
        table = Embedding("emb", 50, 4, input_sample_shape=(3,), cache=cache)
        net = singanet.FeedForwardNet([table, Flatten("flat"), Dense("fc", 4)], seed=1)
        net.add(Dense("out", 50, W_specs=table.params["weight"], W_transpose=True))
        net.loss = SoftmaxCrossEntropy()
        return net

    assert expect_as_in_memory(lambda: SGD(lr=0.5), tied(), tied()).lookups == {}
    with pytest.raises(ArgumentError, match="another layer reads whole"):
        trained(tied(EXACT), Hybrid(SGD(lr=0.5)))


def test_refusals_name_what_to_do():
    net = words_net()
    with pytest.raises(ArgumentError, match="cache"):
        Embedding("emb", 5, 2, cache=0.1)
    with pytest.raises(ArgumentError, match="none on servers.*train by AllReduce"):
        Averaged(Hybrid(SGD(lr=0.1)), 0.5)
    trained(net, Hybrid(SGD(lr=0.5)))
    with pytest.raises(CallOrderError, match="not here"):
        net.params()[0].value[3] = 0.0
    with pytest.raises(ArgumentError, match="the parameter is a table"):
        SGD(lr=0.1).update(["e/weight"], [net.params()[0].value], [np.zeros((50, 5), "f")])
    with pytest.raises(CallOrderError, match="deepcopy"):
        net.as_type("float64")


def program_of(optimizer, cache=None):
    x, y = Input("x", (3,), dtype="int64"), Input("y", (), dtype="int64")
    table = Embedding("emb", 50, 4, cache=cache)
    hidden = Dense("fc", 4)(Flatten("flat")(table(x)))
    loss = SoftmaxCrossEntropy()(Dense("out", 4)(hidden), y)
    like = Dense("like", 50, W_specs=table.params["weight"], W_transpose=True)(hidden)
    named = {"train": [loss, optimizer.minimize(loss)], "loss": [loss], "like": [like]}
    return singanet.Executor(named, seed=0)


def test_named_programs_are_served_and_others_read_the_whole_table():
    plain, served = program_of(SGD(lr=0.5)), program_of(Hybrid(SGD(lr=0.5)), EXACT)
    for x, y in BATCHES:
        for name in ("train", "loss"):
            assert served.run(name, {"x": x, "y": y}) == plain.run(name, {"x": x, "y": y})
        (found,), (expected,) = (one.run("like", {"x": x}) for one in (served, plain))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
