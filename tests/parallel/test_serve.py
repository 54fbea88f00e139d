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
from singanet.optimizer import SGD, Accumulator, AdaGrad, Adam, ClipByLayerNorm, ClipByValue
from singanet.parallel import Hybrid
from singanet.training.callbacks import ModelCheckpoint
from tests.parallel.tables import batches, words_net

EXACT = Cache("lfu", 15, 0, 0)
BOUNDED = Cache("lru", 15, 4, 4)


def trained(net, optimizer, data=None):
    return [net.step(x, y, optimizer)[0] for x, y in data or batches()]


def values(net):
    return {param.name: param.peek().copy() for param in net.params()}


def expect_equal(one, other):
    for name, value in one.items():
        assert np.array_equal(value, other[name]), name


@pytest.mark.parametrize("cache", [None, EXACT])
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
    plain, served = words_net(), words_net(cache)
    hybrid = Hybrid(make())
    assert trained(served, hybrid) == trained(plain, make())
    expect_equal(values(served), values(plain))
    assert served.programs.refusals == []
    assert served.programs.notes == plain.programs.notes
    assert len(served.programs.reports()) == 1


@pytest.mark.parametrize("cache", [None, EXACT])
def test_padding_stays_zero_in_tables_and_caches(cache):
    def padded(cache=None):
        net = words_net(cache)
        given = {**net.layers[0].arguments, "padding_index": 3}
        layers = [Embedding(**given), *(type(x)(**x.arguments) for x in net.layers[1:])]
        return singanet.FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=0)

    plain, served = padded(), padded(cache)
    hybrid = Hybrid(Adam(lr=0.05))
    data = list(batches())
    assert any((x == 3).any() for x, _ in data)
    assert trained(served, hybrid, data) == trained(plain, Adam(lr=0.05), data)
    expect_equal(values(served), values(plain))
    assert not values(served)["emb/weight"][3].any()


def test_bounded_rows_train_nearly_the_same():
    plain, served = words_net(), words_net(BOUNDED)
    optimizer = Hybrid(SGD(lr=0.5))
    np.testing.assert_allclose(trained(served, optimizer), trained(plain, SGD(lr=0.5)), rtol=1e-5)
    told = optimizer.lookups["emb/weight"]
    assert 0 < told.hits < told.rows
    assert told.nbytes < told.nbytes_uncached * 1.5
    for name, value in values(plain).items():
        np.testing.assert_allclose(values(served)[name], value, atol=1e-5)


def test_a_loop_of_ones_own_by_layers_is_the_same():
    plain, served = words_net(), words_net(EXACT)
    optimizer, hybrid = SGD(lr=0.5), Hybrid(SGD(lr=0.5))
    hybrid.meet(served)
    for x, y in batches():
        for net, rule in ((plain, optimizer), (served, hybrid)):
            out = net.forward(True, x)
            net.loss.forward(True, out, y)
            for names, their, grads in net.backward(net.loss.backward()):
                rule.update(names, their, grads)
    expect_equal(values(served), values(plain))


@pytest.mark.parametrize("cache", [None, EXACT, BOUNDED])
def test_fit_evaluates_and_predicts_by_the_tables(cache):
    data = batches(10)
    x, y = (np.concatenate(part) for part in zip(*data, strict=True))
    plain, served = words_net(), words_net(cache)
    histories = []
    for net, optimizer in ((plain, SGD(lr=0.5)), (served, Hybrid(SGD(lr=0.5)))):
        net.compile(optimizer, metrics=["accuracy"])
        histories.append(
            net.fit(x, y, epochs=3, batch_size=16, validation_data=(x, y), verbose=False)
        )
    np.testing.assert_allclose(histories[1]["loss"], histories[0]["loss"], rtol=1e-5)
    np.testing.assert_allclose(histories[1]["val_loss"], histories[0]["val_loss"], rtol=1e-5)
    np.testing.assert_allclose(served.predict(x), plain.predict(x), rtol=1e-4, atol=1e-6)


def test_a_training_goes_on_from_its_checkpoint_with_the_tables_and_their_state(tmp_path):
    data = batches(10)
    x, y = (np.concatenate(part) for part in zip(*data, strict=True))

    def fitted(folder, epochs, resume=None):
        net, kept = words_net(EXACT), ModelCheckpoint(tmp_path / folder)
        net.compile(Hybrid(Adam(lr=0.05)))
        net.fit(x, y, 16, epochs, callbacks=[kept], resume=resume, verbose=False)
        return values(net)

    fitted("first", 2)
    expect_equal(fitted("second", 4, resume=tmp_path / "first"), fitted("whole", 4))


def test_hyper_parameters_that_are_assigned_reach_tables_and_caches():
    plain, served = words_net(), words_net(EXACT)
    optimizer, hybrid = SGD(lr=0.5), Hybrid(SGD(lr=0.5))
    trained(plain, optimizer)
    trained(served, hybrid)
    optimizer.lr = hybrid.optimizer.lr = 0.01
    assert trained(served, hybrid) == trained(plain, optimizer)
    expect_equal(values(served), values(plain))


def test_evaluation_changes_neither_cache_nor_count():
    net, optimizer = words_net(BOUNDED), Hybrid(SGD(lr=0.5))
    trained(net, optimizer)
    told = copy.copy(optimizer.lookups["emb/weight"])
    rows = net.params()[0].served
    held = rows._row_of.copy()
    net.forward(False, batches(seed=5)[0][0])
    assert told.rows == rows.lookups.rows
    assert np.array_equal(held, rows._row_of)
    assert not rows.gathered.any()


@pytest.mark.parametrize("cache", [None, EXACT])
def test_layers_that_share_a_table_and_slices_of_ids(cache):
    def net(cache):
        x = Input("x", (6,), dtype="int64")
        left, right = Slice("halves", 1, 2)(x)
        first = Embedding("one", 50, 4, cache=cache)
        one = first(left)
        two = Embedding("two", 50, 4, W_specs=first.params["weight"], cache=cache)(right)
        third = Embedding("three", 50, 12, cache=cache)(right)
        flat = [Flatten(f"flat{k}")(each) for k, each in enumerate((one, two, third))]
        scores = [Dense(f"fc{k}", 3)(each) for k, each in enumerate(flat)]
        return singanet.FeedForwardNet(
            loss=SoftmaxCrossEntropy(), inputs=x, outputs=Add("sum")(*scores), seed=2
        )

    plain, served = net(None), net(cache)
    hybrid = Hybrid(SGD(lr=0.5))
    assert trained(served, hybrid) == trained(plain, SGD(lr=0.5))
    expect_equal(values(served), values(plain))
    assert sorted(hybrid.lookups) == ["one/weight", "three/weight"]
    assert served.programs.notes == served.programs.refusals == []


def test_ids_out_of_range_are_refused_before_anything_changes():
    net, optimizer = words_net(BOUNDED), Hybrid(SGD(lr=0.5))
    data = batches()
    trained(net, optimizer, data)
    before, told = values(net), copy.copy(optimizer.lookups["emb/weight"])
    rows = net.params()[0].served
    held = rows._row_of.copy()
    for wrong in (50, -1):
        x = data[0][0].copy()
        x[2, 3] = wrong
        with pytest.raises(DataError, match=r"position \(2, 3\)"):
            net.step(x, data[0][1], optimizer)
    expect_equal(values(net), before)
    assert told == optimizer.lookups["emb/weight"]
    assert np.array_equal(held, rows._row_of)


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "singanet"])
def test_files_have_the_rows_of_the_tables(tmp_path, suffix):
    net, optimizer = words_net(BOUNDED), Hybrid(SGD(lr=0.5))
    trained(net, optimizer)
    path = tmp_path / f"net.{suffix}"
    if suffix == "singanet":
        net.save_model(path)
        other = singanet.load_model(path)
        assert repr(other.layers[0].cache) == repr(BOUNDED)
    else:
        net.save(path)
        other = words_net(seed=9)
        other.load(path)
    expect_equal(values(other), values(net))
    served = words_net(BOUNDED, seed=9)
    hybrid = Hybrid(SGD(lr=0.5))
    trained(served, hybrid, batches(2))
    if suffix != "singanet":
        served.load(path)
        expect_equal(values(served), values(net))
        np.testing.assert_array_equal(
            served.forward(False, batches(1)[0][0]), other.forward(False, batches(1)[0][0])
        )


def test_a_table_is_streamed_into_a_file(tmp_path, monkeypatch):
    """No more of it is in the worker's memory than a piece, here 1 of 16 MB."""
    net = singanet.FeedForwardNet(
        [Embedding("emb", 1 << 17, 32, input_sample_shape=(6,)), Flatten("flat"), Dense("fc", 3)],
        seed=3,
    )
    monkeypatch.setattr("singanet.parallel.cached_rows._PIECE", 1 << 20)
    Hybrid(SGD(lr=0.5)).meet(net)
    tracemalloc.start()
    net.save(tmp_path / "net.safetensors")
    net.save_model(tmp_path / "net.singanet")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 5e6
    other = singanet.load_model(tmp_path / "net.singanet")
    expect_equal(values(other), values(net))


def test_values_that_a_net_had_go_into_the_table(tmp_path):
    pretrained = words_net(seed=4)
    trained(pretrained, SGD(lr=0.5))
    pretrained.save(tmp_path / "net.npz")
    net = words_net(seed=5)
    net.load(tmp_path / "net.npz")
    Hybrid(SGD(lr=0.5)).meet(net)
    expect_equal(values(net), values(pretrained))


def test_a_net_that_is_met_first_never_has_the_table():
    net = singanet.FeedForwardNet(
        [Embedding("emb", 4000, 4, input_sample_shape=(6,)), Flatten("flat"), Dense("fc", 3)],
        loss=SoftmaxCrossEntropy(),
        seed=3,
    )
    Hybrid(SGD(lr=0.5)).meet(net)
    (param,) = (p for p in net.params() if p.name == "emb/weight")
    assert param.value.strides == (0, 0)
    plain = singanet.FeedForwardNet(
        [Embedding("emb", 4000, 4, input_sample_shape=(6,)), Flatten("flat"), Dense("fc", 3)],
        loss=SoftmaxCrossEntropy(),
        seed=3,
    )
    assert np.array_equal(param.peek(), plain.params()[0].value)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_of_a_net_has_its_rows_in_memory(copied):
    net = words_net(BOUNDED)
    trained(net, Hybrid(SGD(lr=0.5)))
    other = copied(net)
    assert other.params()[0].served is None
    expect_equal(values(other), values(net))
    before = values(net)
    trained(other, SGD(lr=0.5))
    expect_equal(values(net), before)


def test_a_frozen_table_stays_in_memory():
    net = words_net()
    net.layers[0].trainable = False
    hybrid = Hybrid(SGD(lr=0.5))
    trained(net, hybrid)
    assert hybrid.lookups == {}


def test_what_reads_all_rows_is_not_served():
    def tied(cache=None):
        table = Embedding("emb", 50, 4, input_sample_shape=(6,), cache=cache)
        net = singanet.FeedForwardNet([table, Flatten("flat"), Dense("fc", 4)], seed=1)
        net.add(Dense("out", 50, W_specs=table.params["weight"], W_transpose=True))
        net.loss = SoftmaxCrossEntropy()
        return net

    net, hybrid = tied(), Hybrid(SGD(lr=0.5))
    data = [(x, y) for x, y in batches()]
    assert trained(net, hybrid, data) == trained(tied(), SGD(lr=0.5), data)
    assert hybrid.lookups == {}
    with pytest.raises(ArgumentError, match="another layer reads whole"):
        trained(tied(EXACT), Hybrid(SGD(lr=0.5)), data)


def test_refusals_name_what_to_do():
    net = words_net()
    with pytest.raises(ArgumentError, match="cache"):
        Embedding("emb", 5, 2, cache=0.1)
    with pytest.raises(ArgumentError, match="only clipping stages"):
        Accumulator(Hybrid(SGD(lr=0.1)), 2).optimizer.meet(net, [Accumulator(SGD(lr=0.1), 2)])
    trained(net, Hybrid(SGD(lr=0.5)))
    with pytest.raises(CallOrderError, match="not here"):
        net.params()[0].value[3] = 0.0
    with pytest.raises(ArgumentError, match="the parameter is a table"):
        SGD(lr=0.1).update(["emb/weight"], [net.params()[0].value], [np.zeros((50, 4), "f")])
    with pytest.raises(CallOrderError, match="deepcopy"):
        net.as_type("float64")


def test_predictors_have_the_rows_of_the_tables():
    net, hybrid = words_net(BOUNDED), Hybrid(SGD(lr=0.5))
    trained(net, hybrid)
    x = batches(1)[0][0]
    before, predictor = net.predict(x), net.predictor()
    np.testing.assert_allclose(predictor(x), before, rtol=1e-5)
    trained(net, hybrid)
    np.testing.assert_allclose(predictor(x), before, rtol=1e-5)


def program_of(optimizer, cache=None):
    x, y = Input("x", (6,), dtype="int64"), Input("y", (), dtype="int64")
    table = Embedding("emb", 50, 4, cache=cache)
    hidden = Dense("fc", 4)(Flatten("flat")(table(x)))
    scores = Dense("out", 3)(hidden)
    loss = SoftmaxCrossEntropy()(scores, y)
    like = Dense("like", 50, W_specs=table.params["weight"], W_transpose=True)(hidden)
    named = {"train": [loss, optimizer.minimize(loss)], "loss": [loss], "like": [like]}
    return singanet.Executor(named, seed=0)


def test_named_programs_are_served_and_others_read_the_whole_table():
    plain, served = program_of(SGD(lr=0.5)), program_of(Hybrid(SGD(lr=0.5)), EXACT)
    for x, y in batches():
        feed = {"x": x, "y": y}
        assert served.run("train", feed) == plain.run("train", feed)
        assert served.run("loss", feed) == plain.run("loss", feed)
        (found,), (expected,) = (one.run("like", {"x": x}) for one in (served, plain))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
