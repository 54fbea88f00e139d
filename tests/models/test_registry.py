"""The table of ready nets, and nets built from it by name."""

import json
from math import prod

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.errors import ArgumentError, UnknownNameError
from singanet.models import build, entries, find
from singanet.optimizer import Adam
from tests.program.twins import Twins


def test_names_are_unique_and_each_entry_says_what_it_is():
    names = [entry.name for entry in entries()]
    assert len(set(names)) == len(names)
    for entry in entries():
        assert entry.description
        assert find(entry.name) is entry


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_each_entry_tells_the_count_of_its_usual_form(entry, count):
    net = build(entry.name)
    trained, _ = count(net)
    assert trained == entry.parameters


def test_shape_classes_options_and_seed_are_the_usual_ones_unless_given():
    assert build("lenet").layers[0].in_shapes == (1, 28, 28)
    net = build("lenet", (3, 9, 7), 4)
    assert net.predict(np.zeros((2, 3, 9, 7), np.float32)).shape == (2, 4)
    nets = [build("mlp", (4,), 2, seed, hidden=(5,)) for seed in (1, 1, 2)]
    assert [v.shape for v in nets[0].param_values()] == [(4, 5), (5,), (5, 2), (2,)]
    one, same, other = (net.param_values()[0] for net in nets)
    np.testing.assert_array_equal(one, same)
    assert (one != other).all()


@pytest.mark.parametrize(
    ("given", "options", "error", "words"),
    [
        (("lennet",), {}, UnknownNameError, "did you mean 'lenet'"),
        (("mlp", (4,), 2), {"hiden": (5,)}, UnknownNameError,
         r"model 'mlp': .*'hidden'.*did you mean 'hidden'"),
        *((("mlp", shape, 2), {}, ArgumentError, "model 'mlp', argument input_shape")
          for shape in ((), (0, 8, 8), (-1,), (2.0, 3), (True, 3), 5, "abc")),
        *((("mlp", (4,), classes), {}, ArgumentError, "model 'mlp', argument num_classes")
          for classes in (0, -3, 2.0, True, "10")),
    ],
)  # fmt: skip
def test_what_makes_no_net_is_refused(given, options, error, words):
    with pytest.raises(error, match=words):
        build(*given, **options)


def small_form(entry):
    """A shape for which the net of ``entry`` has few numbers."""
    if entry.task == "text":
        return (8,)
    return entry.input_shape if entry.task == "tabular" else (1, 8, 8)


@pytest.mark.few(12)
@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_each_net_can_be_written_down_and_read_back(entry):
    net = build(entry.name, small_form(entry), 5)
    again = FeedForwardNet.from_config(json.loads(json.dumps(net.to_config())))

    def described(net):
        nodes = net._graph.nodes.values()  # net.nodes would fill the parameters
        return [
            (n.name, n.out_shapes, [(p.name, p.shape) for p in n.layer.params.values()])
            for n in nodes
        ]

    assert described(again) == described(net)
    assert type(again.loss) is type(net.loss)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("mobilenet", "MobileNet"), ("mobilenet_v2", "MobileNetV2"),
        ("mobilenet_v3_small", "MobileNetV3Small"), ("mobilenet_v3_large", "MobileNetV3Large"),
        ("efficientnet_b0", "EfficientNetB0"), ("densenet121", "DenseNet121"),
    ],
)  # fmt: skip
def test_what_is_trained_is_of_the_sizes_that_keras_trains(name, published):
    applications = pytest.importorskip("keras").applications
    theirs = getattr(applications, published)(weights=None).trainable_weights
    nodes = build(name)._graph.nodes.values()
    ours = [p.shape for node in nodes for p in node.layer.params.values() if p.trainable]
    # A convolution's weight has two axes here and four there, but as many numbers.
    assert sorted(prod(shape) for shape in ours) == sorted(prod(w.shape) for w in theirs)


# -- Nets for large images in forms of few numbers: gradients, recorded steps, memory told befo


LARGE = pytest.mark.slow
FORMS = {
    "vgg11": ((1, 4, 4), {}, LARGE),
    "mobilenet_v2": ((1, 4, 4), {"dropout": 0.1}, LARGE),
    "mobilenet_v3_small": ((1, 4, 4), {"dropout": 0.1}, LARGE),
    "mobilenet_v3_large": ((1, 4, 4), {}, LARGE),
    "efficientnet_b0": ((1, 4, 4), {}, LARGE),
    "densenet121": ((2, 4, 5), {"blocks": (1, 2), "growth": 4}, ()),
    "vit_tiny": ((1, 4, 4), {"width": 8, "depth": 1, "heads": 2, "dropout": 0.1}, ()),
    "unet": ((1, 5, 4), {"width": 2}, ()),
}
forms = pytest.mark.parametrize(
    ("name", "shape", "options"),
    [pytest.param(name, *form, marks=marks) for name, (*form, marks) in FORMS.items()],
)


def batch(name, shape, size=2):
    """Images and labels, of U-Net for every pixel."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((size, *shape), np.float32)
    return x, rng.integers(0, 3, (size, *shape[1:]) if name == "unet" else size)


@forms
def test_recorded_steps_are_those_of_the_layers(name, shape, options):
    twins = Twins(lambda: build(name, shape, 3, seed=0, **options), lambda: Adam(lr=0.01))
    x, y = batch(name, shape)
    for _ in range(3):
        twins.step(x, y)
    twins.forward(False, x)
    assert not twins.recorded.programs.refusals
    assert not twins.recorded.programs.notes
