"""Clipping by the exact norm of all gradients, against the formula on the whole list of them."""

import tracemalloc

import numpy as np
import pytest

import singanet
from singanet.data import ArrayLoader
from singanet.errors import CallOrderError
from singanet.layers import Dense, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.optimizer import SGD, Accumulator, ClipByGlobalNorm, ClipByValue
from singanet.training import Callback
from tests.kit.nets import values_of
from tests.kit.ranks import expect_near_values


def dense(grad, shape):
    """``grad`` as an array, a row-sparse one with zeros in the other rows."""
    if not isinstance(grad, tuple):
        return grad.astype(np.float64)
    whole = np.zeros(shape)
    whole[grad[0]] = grad[1]
    return whole


def unstreamed(net, batches, limit, every=1, lr=0.1):
    """Plain SGD on the whole list of gradients, clipped by its norm; returns the norms."""
    norms, gathered = [], []
    params = net.params()
    for x, y in batches:
        grads, _ = net.train(x, y)
        pairs = [
            (p, dense(g, p.shape)) for p, g in zip(params, grads, strict=True) if g is not None
        ]
        gathered.append(pairs)
        if len(gathered) < every:
            continue
        means = [
            (parts[0][0], sum(g for _, g in parts) / every) for parts in zip(*gathered, strict=True)
        ]
        gathered = []
        norms.append(float(np.sqrt(sum((g**2).sum() for _, g in means))))
        for param, g in means:
            param.value -= (lr * g * min(1.0, limit / norms[-1])).astype(np.float32)
    return norms


def close(net, other):
    expect_near_values(values_of(net), values_of(other), 2e-5, 2e-6)
    assert net.rng.bit_generator.state == other.rng.bit_generator.state


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("limit", [0.3, 0.9, 100.0])
def test_fit_clips_by_the_norm_of_all_gradients(build, data, limit, every):
    net, other = build(optimizer=SGD(lr=0.1)), build()
    net.fit(*data, batch_size=10, epochs=3, clip=limit, clip_by="global", accumulate=every,
            verbose=False)  # fmt: skip
    loader = ArrayLoader(*data, 10, seed=other.seed)
    batches = [batch for _ in range(3) for batch in loader]
    norms = unstreamed(other, batches, limit, every)
    close(net, other)
    # The limits were chosen so that none, some and all steps are clipped.
    clipped = np.mean([norm > limit for norm in norms])
    assert {0.3: clipped == 1, 0.9: 0 < clipped < 1, 100.0: clipped == 0}[limit]


def test_row_sparse_gradients_count_and_are_clipped(rng):
    def build():
        net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
        net.add(Embedding("words", 7, 3, input_sample_shape=(4,)))
        net.add(Flatten("flat"))
        net.add(Dense("fc", 2))
        net.compile(SGD(lr=0.1))
        return net

    x, y = rng.integers(0, 7, (24, 4)), rng.integers(0, 2, 24)
    net, other = build(), build()
    net.fit(x, y, 6, shuffle=False, clip=0.2, clip_by="global", accumulate=2, verbose=False)
    norms = unstreamed(other, ArrayLoader(x, y, 6, shuffle=False), 0.2, 2)
    assert min(norms) > 0.2
    close(net, other)


def test_a_batch_by_itself_is_clipped_too(build, data):
    net, other = build(optimizer=ClipByGlobalNorm(SGD(lr=0.1), 0.2)), build()
    net.train_on_batch(*data)
    assert min(unstreamed(other, [data], 0.2)) > 0.2
    close(net, other)


def test_other_clipping_may_stand_inside(build, data):
    net, other = build(), build()
    net.compile(ClipByValue(SGD(lr=0.1), 1e9), metrics=[Accuracy()])
    net.fit(*data, batch_size=10, shuffle=False, clip=0.2, clip_by="global", verbose=False)
    unstreamed(other, ArrayLoader(*data, 10, shuffle=False), 0.2)
    close(net, other)


def test_callbacks_see_each_layer_once(build, data):
    class Count(Callback):
        layers = 0

        def on_layer_gradients(self, names, values, grads):
            self.layers += 1

    count, net = Count(), build()
    net.fit(*data, batch_size=10, clip=1.0, clip_by="global", callbacks=[count], verbose=False)
    assert count.layers == 5 * len(net.layers)


def test_metrics_gather_each_sample_once(build, data):
    clipped, plain = build(), build()
    a = clipped.fit(*data, batch_size=10, clip=1e9, clip_by="global", verbose=False)
    b = plain.fit(*data, batch_size=10, verbose=False)
    assert a == b


@pytest.mark.parametrize("recorded", [True, False])
def test_no_two_layers_gradients_are_held(recorded):
    """Six layers of 4 MB gradients each: all together would take 24 MB."""
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    net.add(Dense("fc0", 1000, input_sample_shape=(1000,)))
    for k in range(1, 6):
        net.add(Dense(f"fc{k}", 1000))
    net.compile(ClipByGlobalNorm(SGD(lr=0.01), 0.1))
    net.programs.enabled = recorded
    x, y = np.ones((4, 1000), np.float32), np.arange(4)
    # Recording imagines arrays, which take no memory but count as if they did.
    net.fit(x, y, batch_size=4, epochs=3, verbose=False)
    tracemalloc.start()
    net.fit(x, y, batch_size=4, verbose=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6


def test_gradients_that_are_not_finite_are_not_hidden(build, data):
    x = data[0].copy()
    x[3] = np.inf
    net = build()
    with np.errstate(invalid="ignore"), pytest.warns(RuntimeWarning, match="the loss is nan"):
        history = net.fit(x, data[1], clip=1.0, clip_by="global", verbose=False)
    assert not np.isfinite(history["loss"][0])


def test_an_update_without_a_norm_is_refused():
    clip, value = ClipByGlobalNorm(SGD(lr=1.0), 1.0), np.ones(2)
    with pytest.raises(CallOrderError, match=r"fit\(clip_by='global'\)"):
        clip.update(["w"], [value], [np.ones(2)])
    with clip.knowing(4.0):
        clip.update(["w"], [value], [np.ones(2)])
    np.testing.assert_allclose(value, 0.75)
    with pytest.raises(CallOrderError):
        clip.update(["w"], [value], [np.ones(2)])


def test_a_preview_changes_nothing(rng):
    def gradients(k):
        return [np.random.default_rng(k).standard_normal(3)]

    one, other = Accumulator(SGD(lr=1.0), 2), Accumulator(SGD(lr=1.0), 2)
    a, b = np.zeros(3), np.zeros(3)
    for k in range(4):
        due = one.preview(["w"], [a], gradients(k))
        one.update(["w"], [a], gradients(k))
        other.update(["w"], [b], gradients(k))
        assert np.array_equal(a, b)
        if k % 2:
            np.testing.assert_allclose(due[0], (gradients(k - 1)[0] + gradients(k)[0]) / 2)
        else:
            assert due == [None]
