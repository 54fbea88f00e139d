import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.engine.feeds import as_array
from singanet.errors import DataError, ShapeError, UnknownNameError
from singanet.layers import Concat, Dense
from singanet.training.batches import by_name, input_names, output_names, sample_count


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
    named = by_name("x", [a, b], ["left", "right"], all_of_them=True)
    assert list(named) == ["left", "right"]
    assert named["right"] is b
    assert by_name("x", [a], ["only"], all_of_them=True) is a
    assert by_name("x", {"only": a}, ["only"], all_of_them=True) is a
    # Two samples of three numbers, not arrays for two layers.
    assert by_name("x", [a[0], a[1]], ["only"], all_of_them=True).shape == (2, 3)
    with pytest.raises(ShapeError, match="expected 2 arrays, for 'left', 'right'"):
        by_name("x", [a], ["left", "right"], all_of_them=True)


def test_keys_are_layers():
    a = np.zeros((2, 3))
    with pytest.raises(UnknownNameError, match="none for 'right'"):
        by_name("x", {"left": a}, ["left", "right"], all_of_them=True)
    assert list(by_name("y", {"left": a}, ["left", "right"], all_of_them=False)) == ["left"]
    with pytest.raises(UnknownNameError, match="did you mean 'left'"):
        by_name("x", {"lefd": a}, ["left"], all_of_them=True)


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
    outputs = [Concat("joined", 1)(a, hidden), hidden]
    net = FeedForwardNet(inputs=[b, a], outputs=outputs)
    assert input_names(net) == ["b", "a"]
    assert output_names(net) == ["joined", "hidden"]
