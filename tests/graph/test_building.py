"""Nets from lists: what may stand first, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, GraphError, ShapeError, UnknownNameError
from singanet.layers import Activation, Dense, Embedding, Flatten
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy


def layers():
    return [Flatten("flat", input_sample_shape=(2, 3)), Dense("fc", 4), Activation("r")]


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_is_a_chain(kind):
    made = FeedForwardNet(kind(layers()), loss=SoftmaxCrossEntropy(), metric=Accuracy(), seed=1)
    added = FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=1)
    for layer in layers():
        added.add(layer)
    x = np.random.default_rng(0).random((5, 2, 3), np.float32)
    np.testing.assert_array_equal(made.forward(False, x), added.forward(False, x))
    assert made.to_config() == added.to_config()
    made.add(Dense("top", 2))
    assert made.forward(False, x).shape == (5, 2)


def test_a_list_may_begin_with_an_input_as_in_keras():
    ids = np.array([[1, 2, 0]])
    listed = FeedForwardNet(
        [Input((3,), dtype="int64"), Embedding("e", 4, 2), Dense("d", 5)], seed=0
    )
    added = FeedForwardNet(seed=0)
    for part in (Input((3,), dtype="int64"), Embedding("e", 4, 2), Dense("d", 5)):
        assert added.add(part) is part
    np.testing.assert_array_equal(listed.forward(False, ids), added.forward(False, ids))
    assert listed.forward(False, ids).shape == (1, 3, 5)
    assert FeedForwardNet.from_config(listed.to_config()).to_config() == listed.to_config()
    drawn = Dense("d", 2)(Input((3,)))
    with pytest.raises(ArgumentError, match="received Symbol"):
        FeedForwardNet([drawn])


def test_singas_order_of_arguments_stays():
    loss, metric = SquaredError(), Accuracy()
    for net in (FeedForwardNet(loss, metric), FeedForwardNet(loss=loss, metric=metric)):
        assert (net.loss, net.metric) == (loss, metric)
    several = MultiLoss({"a": SquaredError()})
    assert FeedForwardNet(several).loss is several
    assert FeedForwardNet(None, metric).metric is metric
    assert FeedForwardNet([]).add(layers()[0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((Dense("fc", 2),), r"list of layers, or a loss.*received a Dense.*put it into a list"),
        ((FeedForwardNet(name="n"),), "received a FeedForwardNet.*put it into a list"),
        ((3,), "received a int"),
        (("mse",), "received a str"),
        ((Dense,), "the class Dense"),
        ((SoftmaxCrossEntropy,), "a metric|received"),
        ((Accuracy(),), "list of layers, or a loss.*received a Accuracy"),
        (([Dense("fc", 2, input_sample_shape=(2,))], SquaredError()), "argument metric.*by name"),
        (([Dense("fc", 2, input_sample_shape=(2,)), 3],), "argument layers.*received int"),
        (([Dense("fc", 2, input_sample_shape=(2,)), None],), "argument layers.*NoneType"),
        (((Dense("fc", 2, input_sample_shape=(2,)), [Dense("b", 2)]),), "received list"),
    ],
)  # fmt: skip
def test_anything_else_is_refused(given, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        FeedForwardNet(*given)
    assert len(str(caught.value)) < 400


def test_a_class_is_no_object():
    with pytest.raises(ArgumentError, match="the class SoftmaxCrossEntropy"):
        FeedForwardNet(SoftmaxCrossEntropy)
    with pytest.raises(ArgumentError, match="the class Accuracy"):
        FeedForwardNet(metric=Accuracy)


def test_two_losses_and_two_ways_of_building_are_refused():
    with pytest.raises(ArgumentError, match="one loss"):
        FeedForwardNet(SquaredError(), loss=SquaredError())
    x = Input("x", (2,))
    with pytest.raises(ArgumentError, match="inputs= and outputs="):
        FeedForwardNet(layers(), inputs=x, outputs=Dense("fc", 1)(x))


def test_a_list_that_does_not_fit_leaves_its_layers_as_they_were():
    parts = layers()
    parts.append(Flatten("again"))
    parts.append(Dense("fc", 3))
    with pytest.raises(GraphError, match="layer 'fc'"):
        FeedForwardNet(parts)
    assert all(layer.out_shapes is None for layer in parts if not layer.input_sample_shape)
    wrong = [Dense("fc", 4, input_sample_shape=(2,)), Dense("b", 2), Flatten("f", axis=9)]
    with pytest.raises((ShapeError, ArgumentError)):
        FeedForwardNet(wrong)
    assert list(wrong[0].params) == ["weight", "bias"], "as it was made"
    assert all(layer.out_shapes is None and not layer.params for layer in wrong[1:])


def test_layers_stand_in_topological_order_whatever_the_order_of_adding():
    net = FeedForwardNet()
    net.add(Dense("last", 2), src="first")
    net.add(Dense("first", 3, input_sample_shape=(4,)), src=[])
    net.add(Dense("other", 2), src="first")
    assert [layer.name for layer in net.layers] == ["first", "last", "other"]


def test_an_unknown_layer_is_named():
    net = FeedForwardNet(layers())
    with pytest.raises(UnknownNameError, match="did you mean 'fc'"):
        net["fcc"]
