"""DenseNet."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.models import build


def test_the_count_is_the_published_one(count):
    # torchvision's densenet121; Keras has 8,062,504 with running means and variances.
    assert count(build("densenet121")) == (7_978_856, 8_062_504 - 7_978_856)


def test_channels_and_sizes_are_those_of_the_papers_table():
    net = build("densenet121")
    expected = {
        "conv_relu": (64, 112, 112),
        "conv_pool": (64, 56, 56),
        "block1_layer6_join": (256, 56, 56),
        "transition1_pool": (128, 28, 28),
        "block2_layer12_join": (512, 28, 28),
        "block3_layer24_join": (1024, 14, 14),
        "block4_layer16_join": (1024, 7, 7),
    }
    assert {name: net[name].out_shapes for name in expected} == expected


def test_other_depths_and_growths(count):
    # torchvision's densenet161 grows by 48, in blocks of 6, 12, 36 and 24 layers.
    net = build("densenet121", blocks=(6, 12, 36, 24), growth=48)
    assert count(net)[0] == 28_681_000


def test_it_learns_small_images(learns):
    net = build("densenet121", (1, 8, 8), 4, seed=0, blocks=(2, 2), growth=4)
    learns(net, (1, 8, 8), 4, lr=0.1, steps=16)


@pytest.mark.slow
def test_it_computes_what_keras_densenet_does(rng):
    peer = pytest.importorskip("keras").applications.DenseNet121(
        weights=None, input_shape=(64, 64, 3), classes=7
    )
    net = build("densenet121", (3, 64, 64), 7, seed=0)
    theirs = [layer for layer in peer.layers if layer.weights]
    ours = [node.layer for node in net.nodes() if node.layer.params]
    for layer, source in zip(ours, theirs, strict=True):
        params, values = layer.params, source.get_weights()
        if len(params) == 4:
            values = [rng.uniform(0.5, 1.5, value.shape).astype("f4") for value in values]
            source.set_weights(values)
            for name, value in zip(("gamma", "beta", "mean", "var"), values, strict=True):
                params[name].value = value.copy()
        elif len(params) == 1:
            kernels = values[0].transpose(3, 2, 0, 1)
            params["weight"].value = np.ascontiguousarray(kernels.reshape(len(kernels), -1))
        else:
            params["weight"].value, params["bias"].value = values
    x = rng.standard_normal((2, 3, 64, 64)).astype(np.float32)
    want = np.asarray(peer.predict(x.transpose(0, 2, 3, 1), verbose=0))
    # The largest difference is by an epsilon of 1.001e-5 in normalisation, where 1e-5 is here.
    np.testing.assert_allclose(net.predict(x), want, rtol=1e-3, atol=1e-5)
