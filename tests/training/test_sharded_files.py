"""Checkpoints that all ranks write at the same time: a file of each, and one index."""

import numpy as np
import pytest

from singanet.checkpoint import convert, open_state, sharded, write_state
from singanet.errors import FileAccessError, FileFormatError, SingaNetError
from singanet.layers import BatchNormalization, Dropout
from singanet.optimizer import Accumulator, Adam, ClipByLayerNorm
from singanet.parallel import AllReduce, Sharded
from singanet.testing import communicators
from singanet.training.callbacks import EMA, Callback, ModelCheckpoint
from tests.kit.nets import dense_net, values_of
from tests.kit.ranks import expect_same_values, together

RNG = np.random.default_rng(3)
X = RNG.standard_normal((32, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 32)
INDEX = ".safetensors.index.json"


def cut(level):
    """Small nets are cut too."""
    return lambda rule, comm: Sharded(rule, comm, level, smallest=100)


def fit(comm, wrap, epochs, folder, resume=None, format="sharded", more=(), steps=None,
        asynchronous=False):  # fmt: skip
    net = dense_net(more=[BatchNormalization("n"), Dropout("r", 0.3)])
    optimizer = Adam(lr=0.001) if wrap is None else wrap(Adam(lr=0.001), comm)
    net.compile(optimizer)
    net.fit(
        X, Y, 8, epochs, verbose=False, resume=resume, validation_data=(X[:5], Y[:5]),
        callbacks=[ModelCheckpoint(folder, every_steps=steps, format=format, keep=2,
                                   asynchronous=asynchronous), *more],
    )  # fmt: skip
    return {**values_of(net), **optimizer.state_dict()}


def whole(path):
    with open_state(path) as reader:
        return {name: np.array(array) for name, array in dict(reader).items()}


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.few(2)
def test_it_has_what_the_file_of_rank_0_has_and_goes_on_to_the_bit(level, tmp_path):
    wrap = cut(level) if level else AllReduce
    made = together(lambda c: fit(c, wrap, 4, tmp_path / "whole", more=[EMA(0.5)]), 3)
    together(lambda c: fit(c, wrap, 2, tmp_path / "one", format="safetensors", more=[EMA(0.5)]), 3)
    together(lambda c: fit(c, wrap, 2, tmp_path / "many", more=[EMA(0.5)]), 3)
    for name in ("epoch-0002", "best"):
        one = whole(tmp_path / "one" / f"{name}.safetensors")
        many = whole(tmp_path / "many" / (name + INDEX))
        assert one.keys() == many.keys()
        expect_same_values(
            [{k: v for k, v in each.items() if k != "session"} for each in (one, many)]
        )
    again = together(lambda c: fit(c, wrap, 4, tmp_path / "many", tmp_path / "many",
                                   more=[EMA(0.5)]), 3)  # fmt: skip
    expect_same_values([made[0], again[0], again[2]])
    # Of three checkpoints the last two stay, with nothing of the first.
    left = {path.name.split(".")[0].split("-0000")[0] for path in (tmp_path / "many").iterdir()}
    assert left == {"epoch-0003", "epoch-0004", "best"}


@pytest.mark.parametrize(("first", "then"), [(2, 3), (3, 1), (1, 2)])
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.few(2)
def test_any_number_of_ranks_takes_it(level, first, then, tmp_path):
    wrap = cut(level)
    together(lambda c: fit(c, wrap, 2, tmp_path), first)
    saved = whole(tmp_path / f"epoch-0002{INDEX}")

    class Sees(Callback):
        def on_batch_begin(self, batch, logs=None):
            net, rule = self.session.net, self.session.optimizer
            if self.session.step == 8:
                own = {**values_of(net), **rule.state_dict()}
                trained = [p.name for p in net.params() if not p.is_state]
                for name in trained:
                    np.testing.assert_array_equal(own[name], saved[f"net/{name}"])
                    slot = f"{name}/mean" if f"{name}/mean" in own else f"{name}/step"
                    np.testing.assert_array_equal(own[slot], saved[f"optimizer/{slot}"])

    again = together(lambda c: fit(c, wrap, 3, tmp_path / "then", tmp_path, more=[Sees()]), then)
    expect_same_values(again)


def test_each_rank_writes_its_part_and_no_more(tmp_path):
    together(lambda c: fit(c, cut(3), 1, tmp_path), 3)
    sizes = sorted(path.stat().st_size for path in tmp_path.glob("epoch-*-of-*.safetensors"))
    assert len(sizes) == 3
    assert sizes[-1] < 1.3 * sum(sizes) / 3


def test_it_becomes_one_file_array_by_array(tmp_path):
    together(lambda c: fit(c, cut(3), 1, tmp_path), 2)
    index = tmp_path / f"epoch-0001{INDEX}"
    convert(index, tmp_path / "one.safetensors")
    expect_same_values([whole(index), whole(tmp_path / "one.safetensors")])
    net = dense_net(more=[BatchNormalization("n"), Dropout("r", 0.3)])
    net.load(index)
    expect_same_values([whole(index), {f"net/{k}": v for k, v in values_of(net).items()}])
    with open_state(index) as reader:
        pieces = list(reader.pieces("net/b/weight"))
        assert len(pieces) == 2
        np.testing.assert_array_equal(np.concatenate(pieces), reader.read("net/b/weight"))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("when", ["part", "index"])
def test_a_rank_that_cannot_write_leaves_the_state_before(rank, when, tmp_path, monkeypatch):
    sources = {"w": np.arange(6.0).reshape(6, 1)}

    def written(comm, value, failing):
        from singanet.checkpoint.entry import sources_of

        rows = slice(3 * comm.rank, 3 * comm.rank + 3)
        own = sources_of({"w": sources["w"][rows] + value}, "test")
        if failing and when == "part" and comm.rank == rank:
            bad = sources_of({"w": np.ones(2)}, "test")

            def fetch():
                raise FileAccessError("f", expected="room", received="a full disk", advice="none")

            own = [type(bad[0])("w", (3, 1), bad[0].dtype, fetch)]
        try:
            path = tmp_path / f"state{INDEX}"
            file = sharded.RanksFile(path, own, comm, {"w": 3 * comm.rank})
            file.write()
            file.finish()
        except SingaNetError as error:
            return str(error)
        return ""

    assert together(lambda comm: written(comm, 0, False)) == ["", ""]
    kept = sorted(path.name for path in tmp_path.iterdir())
    if when == "index":
        monkeypatch.setattr(sharded, "write_index", _full)
    told = together(lambda comm: written(comm, 1, True))
    assert all("a full disk" in each for each in told)
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
    np.testing.assert_array_equal(whole(tmp_path / f"state{INDEX}")["w"], sources["w"])
    monkeypatch.undo()
    assert together(lambda comm: written(comm, 2, False)) == ["", ""]
    np.testing.assert_array_equal(whole(tmp_path / f"state{INDEX}")["w"], sources["w"] + 2)
    assert len([*tmp_path.iterdir()]) == len(kept)


def _full(*arguments):
    raise FileAccessError("index", expected="room", received="a full disk", advice="none")


def test_rows_that_do_not_go_together_are_refused(tmp_path):
    index = tmp_path / f"m{INDEX}"
    for k, array in enumerate((np.ones((2, 3), np.float32), np.ones((2, 4), np.float32))):
        write_state(tmp_path / f"m-{k}.safetensors", {"w": array})
    index.write_text('{"weight_map": {"w": ["m-0.safetensors", "m-1.safetensors"]}}')
    with pytest.raises(FileFormatError, match="rows of one array"):
        open_state(index)
    index.write_text('{"weight_map": {"w": ["m-0.safetensors", "m-0.safetensors"]}}')
    with pytest.raises(FileFormatError, match="once"):
        open_state(index)
    index.write_text('{"weight_map": {"w": []}}')
    with pytest.raises(SingaNetError):
        open_state(index)


@pytest.mark.parametrize("level", [1, 3])
def test_what_micro_batches_have_gathered_is_each_ranks_own(level, tmp_path):
    def work(comm, epochs, resume=None):
        net = dense_net()
        rule = ClipByLayerNorm(Adam(lr=0.01), 0.1)
        net.compile(Accumulator(cut(level)(rule, comm), 3))
        net.fit(X, Y, 8, epochs, shuffle=False, verbose=False, resume=resume,
                callbacks=[ModelCheckpoint(tmp_path, None, format="sharded")])  # fmt: skip
        return values_of(net)

    expected = together(lambda comm: work(comm, 3))
    for path in tmp_path.glob("epoch-0003*"):
        path.unlink()
    # Four batches an epoch, three of them an update.
    again = together(lambda comm: work(comm, 3, tmp_path))
    expect_same_values([*expected, *again])


def test_one_process_writes_it_alone(tmp_path):
    net = dense_net()
    net.compile(Adam(lr=0.01))
    net.fit(
        X, Y, 8, 1, verbose=False, callbacks=[ModelCheckpoint(tmp_path, None, format="sharded")]
    )
    found = whole(tmp_path / f"epoch-0001{INDEX}")
    expect_same_values([found, {f"net/{k}": v for k, v in values_of(net).items()}])
    with communicators(1):
        other = dense_net()
        other.compile(Adam(lr=0.01))
        other.fit(X, Y, 8, 1, verbose=False, resume=tmp_path)
    expect_same_values([values_of(net), values_of(other)])
