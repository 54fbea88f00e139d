"""What a net knows of frames, in its file: it comes back, and forged it is refused."""

import copy
import json
import pickle

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet
from singanet.data import Columns, Table
from singanet.errors import ConfigError, SingaNetError, UnknownNameError
from singanet.layers import Dense
from singanet.loss import SquaredError
from singanet.optimizer import SGD
from tests.kit.files import read_state, rewrite_text
from tests.mutation.mutations import places

COLUMNS = {"a": [1.0, None, 3.0], "b": [1, 2, 3]}


def _net(table=None):
    net = FeedForwardNet([Dense("fc", 1, input_sample_shape=(2,))], loss=SquaredError(), seed=0)
    if table is not None:
        net = FeedForwardNet([Dense("numeric", 1, input_sample_shape=(3,))], seed=0)
    net.table = table
    return net


def test_the_columns_of_training_are_in_the_files_of_net_and_predictor(tmp_path):
    frame = Columns(a=np.arange(4.0), b=np.arange(4.0) ** 2)
    transposed = Columns(b=frame["b"], a=frame["a"])
    net = _net()
    net.step(frame, frame["a"][:, None], SGD(lr=0.01))
    want = net.predict(frame)
    net.save_model(tmp_path / "net.singanet")
    again = singanet.load_model(tmp_path / "net.singanet")
    assert again.columns == {"fc": ("a", "b")}
    np.testing.assert_array_equal(again.predict(transposed), want)
    predictor = pickle.loads(pickle.dumps(net.predictor()))
    np.testing.assert_allclose(predictor(transposed), want, rtol=1e-6)
    net.columns.clear()
    for use in (again.predict, predictor):
        with pytest.raises(UnknownNameError, match="none called 'b'"):
            use(Columns(a=frame["a"], c=frame["a"]))


FORGED = [None, 7, -1, 10**400, float("nan"), "", "numeric", [], [[]], {}, {"dict": {}}, True]


def _mutants(about):
    for key in ("columns", "table"):
        for number in range(len([*places(about[key])]) + 1):
            for forged in FORGED:
                mutant = copy.deepcopy(about)
                holder, at = [(mutant, key), *places(mutant[key])][number]
                holder[at] = forged
                yield mutant


@pytest.mark.full
def test_forged_ones_are_refused_by_errors_of_our_own(tmp_path):
    table = Table.of({**COLUMNS, "c": ["x", "y", None]})
    net, path = _net(table), tmp_path / "net.singanet"
    net.columns["numeric"] = ("a", "b", "c")
    net.save_model(path)
    about = json.loads(bytes(read_state(path)["model"]))
    frame = Columns({name: np.array(column, object) for name, column in COLUMNS.items()})
    refused = []
    for mutant in _mutants(about):
        rewrite_text(path, lambda whole, state, mutant=mutant: mutant)
        try:
            singanet.load_model(path).predict(frame)
        except SingaNetError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert max(map(len, refused)) < 1500


@pytest.mark.parametrize(
    "about",
    [
        {"columns": {"other": ["a"]}},
        {"columns": {"fc": ["a", "a"]}},
        {"columns": {"fc": "ab"}},
        {"table": {"class": "Dense", "arguments": {"name": "fc", "num_output": 2}}},
        {"table": {"class": "Table", "arguments": {"categories": 3, "measures": 4}}},
    ],
)
def test_what_would_not_have_been_written_is_refused(about, tmp_path):
    path = tmp_path / "net.singanet"
    _net().save_model(path)
    rewrite_text(path, lambda whole, state: whole.update(about))
    with pytest.raises((ConfigError, UnknownNameError)):
        singanet.load_model(path)


def test_a_table_of_ones_own_has_to_be_registered(tmp_path):
    class Mine(Table):
        pass

    net, path = _net(Mine.of(COLUMNS)), tmp_path / "net.singanet"
    words = "Mine: expected a class of singanet, or a registered class"
    for save in (net.save_model, net.predictor().save):
        with pytest.raises(ConfigError, match=words):
            save(path)
        assert not path.exists()
    singanet.register("tests.frames.mine")(Mine)
    net.save_model(path)
    assert type(singanet.load_model(path).table) is Mine
