"""Clipping by the exact norm of all gradients, and mixed precision."""

import json
import tracemalloc

import numpy as np
import pytest

import singanet
from singanet import optimizer as opt
from singanet.checkpoint import write_state
from singanet.data import ArrayLoader
from singanet.device import Device, cuda
from singanet.errors import ArgumentError, CallOrderError, DataError, StateMismatchError
from singanet.layers import Activation, BatchNormalization, Dense
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy
from singanet.ops import ops_for
from singanet.optimizer import SGD, Accumulator, Adam, ClipByGlobalNorm, MixedPrecision
from singanet.training import Callback
from singanet.training.callbacks import EMA, EarlyStopping, StopOnNaN
from singanet.training.session import training_state
from tests.kit.callbacks import at
from tests.kit.files import bytes_of
from tests.kit.nets import values_of, words_net
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
    for x, y in batches:
        pairs = zip(net.params(), net.train(x, y)[0], strict=True)
        gathered.append([(p, dense(g, p.shape)) for p, g in pairs if g is not None])
        if len(gathered) < every:
            continue
        columns = zip(*gathered, strict=True)
        means = [(parts[0][0], sum(g for _, g in parts) / every) for parts in columns]
        gathered = []
        norms.append(float(np.sqrt(sum((g**2).sum() for _, g in means))))
        for param, g in means:
            param.value -= (lr * g * min(1.0, limit / norms[-1])).astype(np.float32)
    return norms


def close(net, other):
    expect_near_values(values_of(net), values_of(other), 2e-5, 2e-6)
    assert net.rng.bit_generator.state == other.rng.bit_generator.state


def weight_of_one(optimizer, **precision):
    """A net that multiplies by 1."""
    layer = Dense("fc", 1, use_bias=False, input_sample_shape=(1,))
    net = singanet.FeedForwardNet([layer], loss=SquaredError(), seed=0)
    layer.params["weight"].value = np.ones((1, 1), np.float32)
    net.compile(optimizer, mixed_precision=MixedPrecision(**precision))
    return net


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


def test_a_batch_by_itself_is_clipped_too(build, data, rng):
    net, other = build(optimizer=ClipByGlobalNorm(SGD(lr=0.1), 0.2)), build()
    net.train_on_batch(*data)
    assert min(unstreamed(other, [data], 0.2)) > 0.2
    close(net, other)
    # Other clipping may stand inside.
    net, other = build(), build()
    net.compile(opt.ClipByValue(SGD(lr=0.1), 1e9), metrics=[Accuracy()])
    net.fit(*data, batch_size=10, shuffle=False, clip=0.2, clip_by="global", verbose=False)
    unstreamed(other, ArrayLoader(*data, 10, shuffle=False), 0.2)
    close(net, other)
    # Row-sparse gradients count, and are clipped.
    x, y = rng.integers(0, 7, (24, 4)), rng.integers(0, 2, 24)
    net, other = (words_net(7, 3, 4, 2, seed=0) for _ in range(2))
    net.compile(SGD(lr=0.1))
    net.fit(x, y, 6, shuffle=False, clip=0.2, clip_by="global", accumulate=2, verbose=False)
    assert min(unstreamed(other, ArrayLoader(x, y, 6, shuffle=False), 0.2, 2)) > 0.2
    close(net, other)


@pytest.mark.parametrize("recorded", [True, False])
def test_no_two_layers_gradients_are_held(recorded):
    """Six layers of 4 MB gradients each: all together would take 24 MB."""
    layers = [Dense(f"fc{k}", 1000, input_sample_shape=(1000,)) for k in range(6)]
    net = singanet.FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=0)
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
    grads = [np.random.default_rng(k).standard_normal(3) for k in range(4)]
    one, other = Accumulator(SGD(lr=1.0), 2), Accumulator(SGD(lr=1.0), 2)
    a, b = np.zeros(3), np.zeros(3)
    for k, grad in enumerate(grads):
        due = one.preview(["w"], [a], [grad.copy()])
        one.update(["w"], [a], [grad.copy()])
        other.update(["w"], [b], [grad.copy()])
        assert np.array_equal(a, b)
        if k % 2:
            np.testing.assert_allclose(due[0], (grads[k - 1] + grad) / 2)
        else:
            assert due == [None]


@pytest.fixture
def half(build):
    """The small net of these tests, compiled for mixed precision."""

    def make(optimizer=None, **arguments):
        net, optimizer = build(), optimizer or SGD(lr=0.1, momentum=0.9)
        precision = MixedPrecision(**arguments)
        net.compile(optimizer, metrics=[Accuracy()], mixed_precision=precision)
        return net

    return make


def plain(rng, steps=6):
    """A net without random draws, and enough data for so many steps of 8."""
    layers = [Dense("fc1", 16, input_sample_shape=(6,)), Activation("tanh", "tanh")]
    made = {"loss": SoftmaxCrossEntropy(), "metric": Accuracy(), "seed": 1}
    net = singanet.FeedForwardNet([*layers, Dense("fc2", 3)], **made)
    x = rng.standard_normal((8 * steps, 6)).astype(np.float32)
    return net, x, (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)


@pytest.mark.parametrize("optimizer", [lambda: SGD(lr=0.1, momentum=0.9), lambda: Adam(lr=0.01)])
@pytest.mark.parametrize("arguments",
    [{}, {"accumulate": 2}, {"clip": 0.1, "clip_by": "global"}, {"clip": 0.05}])  # fmt: skip
def test_it_follows_float32_within_its_resolution(rng, optimizer, arguments):
    (net, x, y), (other, _, _) = plain(rng), plain(rng)
    net.compile(optimizer(), mixed_precision="float16")
    other.compile(optimizer())
    a, b = (each.fit(x, y, 8, epochs=5, verbose=False, **arguments) for each in (net, other))
    assert {str(value.dtype) for value in net.param_values()} == {"float16"}
    # float16 has 11 bits: 5e-4 a rounding, some of which add up over 30 steps.
    np.testing.assert_allclose(a["loss"], b["loss"], rtol=5e-3)
    for value, exact in zip(net.param_values(), other.param_values(), strict=True):
        np.testing.assert_allclose(value.astype(np.float32), exact, rtol=2e-2, atol=2e-3)
    assert net.compiled.precision.skipped == 0


def test_a_step_that_overflows_changes_nothing_but_the_scale(half, data):
    net = half(scale=2.0**15)
    net.fit(*data, batch_size=10, verbose=False)  # the optimizer has state, the running means too
    precision = net.compiled.precision

    def all_of():
        kept = {**net.compiled.optimizer.state_dict(), **precision.state_dict()}
        kept = {name: np.asarray(kept[name]).tobytes() for name in kept if name != "scale"}
        return bytes_of(net), {k: v for k, v in kept.items() if k not in ("good", "skipped")}

    before, precision.scale = all_of(), 2.0**60
    assert np.isfinite(net.train_on_batch(*data)["loss"])
    assert (precision.scale, precision.skipped) == (2.0**59, 1)
    assert all_of() == before


def test_callbacks_see_float32_gradients_of_steps_that_are_taken(half, data):
    norms, net = [], half(scale=2.0**60)

    def see(session, names, values, grads):
        assert all(grad.dtype == np.float32 for grad in grads)
        assert all(value.dtype == np.float16 for value in values)
        norms.extend(float(abs(grad).max()) for grad in grads)

    for _ in range(2):
        callbacks = [at("on_layer_gradients", see)]
        net.fit(*data, batch_size=10, callbacks=callbacks, verbose=False)
        if net.compiled.precision.scale > 2.0**50:
            assert net.compiled.precision.skipped == 5
            assert norms == []
            net.compiled.precision.scale = 1024.0
    assert 0 < max(norms) < 10


def test_it_learns_as_well(rng):
    net, x, y = plain(rng, steps=40)
    net.compile(Adam(lr=0.01), metrics=[Accuracy()], mixed_precision="float16")
    net.fit(x, y, 8, epochs=15, verbose=False)
    assert net.evaluate(x, y)[1] > 0.95
    assert net.predict(x).dtype == np.float32
    np.testing.assert_allclose(net.predict(x).sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "h5"])
def test_a_checkpoint_file_holds_the_masters(half, data, same, tmp_path, suffix):
    path, whole, other = tmp_path / f"state.{suffix}", half(), half()

    def keep(session, epoch, _):
        if epoch == 0:
            write_state(path, training_state(session))

    write, given = at("on_epoch_end", keep, _runs_last=True), {"batch_size": 10, "epochs": 2}
    whole.fit(*data, callbacks=[write], verbose=False, **given)
    other.fit(*data, callbacks=[Callback()], resume=path, verbose=False, **given)
    same(whole, other)


def test_a_state_of_the_other_kind_is_refused(half, build, data, same):
    for make, other in ((half, build), (build, half)):
        kept, net, untouched = [], other(), other()
        keep = at("on_train_end", lambda session, kept=kept: kept.append(session.state()))
        make().fit(*data, callbacks=[keep], verbose=False)
        with pytest.raises(StateMismatchError, match=r"(in|without) mixed precision"):
            net.fit(*data, epochs=2, callbacks=[keep], resume=kept[0], verbose=False)
        same(net, untouched)


def test_what_is_written_from_elsewhere_is_trained_on(half, data):
    net = half(optimizer=SGD(lr=1e-3))
    net.fit(*data, verbose=False)
    weight = net["fc2"].params["weight"].value
    weight[0] = 0.75
    net.train_on_batch(*data)
    assert abs(weight[0].astype(np.float32) - 0.75).max() < 1e-2
    assert net.compiled.precision.state_dict()["master/fc2/weight"].dtype == np.float32


def test_averages_and_restored_weights_go_with_it(half, data):
    ema, net = EMA(0.9), half()
    net.fit(*data, epochs=2, validation_split=0.2, callbacks=[ema, EarlyStopping(patience=0)],
            verbose=False)  # fmt: skip
    assert {array.dtype for array in ema.averages.values()} == {np.dtype(np.float32)}
    types = {(param.is_state, str(param.value.dtype)) for param in net.params()}
    assert types == {(False, "float16"), (True, "float32")}


def test_constraints_and_regularizers_act_on_the_masters(rng):
    net, x, y = plain(rng)
    optimizer = SGD(lr=0.5, regularizer=0.01, constraint=opt.MaxNorm(0.5))
    net.compile(optimizer, mixed_precision="float16")
    net.fit(x, y, 8, verbose=False)
    for key, array in net.compiled.precision.state_dict().items():
        if key.startswith("master/"):
            assert np.linalg.norm(array) <= 0.5 * (1 + 1e-6)


def test_row_sparse_gradients(rng):
    net = words_net(9, 4, 5, 2, seed=0)
    net.compile(SGD(lr=0.1, constraint=opt.ClipNorm(1.0)), mixed_precision="float16")
    x, weight = rng.integers(0, 4, (16, 5)), net["e"].params["weight"]
    before = weight.value.copy()
    net.fit(x, rng.integers(0, 2, 16), verbose=False)
    changed = (weight.value != before).any(axis=1)
    np.testing.assert_array_equal(changed, np.isin(np.arange(9), x))


def test_running_statistics_survive_an_overflow_in_forward():
    layers = [Dense("fc", 3, input_sample_shape=(2,)), BatchNormalization("bn"), Dense("out", 1)]
    net = singanet.FeedForwardNet(layers, loss=SquaredError(), seed=0)
    net.compile(SGD(lr=0.1), mixed_precision="float16")
    before = [value.copy() for value in net.param_values()]
    net.train_on_batch(np.full((4, 2), 1e30, np.float32), np.zeros((4, 1), np.float32))
    assert all(map(np.array_equal, before, net.param_values()))
    assert net.compiled.precision.skipped == 1


def test_what_no_scale_can_mend_ends_in_an_error_that_names_the_layer(half, data):
    x = np.full_like(data[0], np.nan)
    net = half(backoff=2.0**-9)
    named = pytest.raises(DataError, match=r"layer 'fc2', gradient: .*lower the learning rate")
    with pytest.warns(RuntimeWarning, match="the loss is nan"), named:
        net.fit(x, data[1], batch_size=10, verbose=False)
    stop, net = StopOnNaN(), half()
    history = net.fit(x, data[1], batch_size=10, callbacks=[stop], verbose=False)
    assert "data x" in history.stopped


def test_batches_come_in_the_order_of_float32(half, build, data):
    seen = [], []
    for net, kept in zip((half(), build()), seen, strict=True):
        see = at("on_batch_begin", lambda session, _, kept=kept: kept.append(session.inputs.copy()))
        net.fit(*data, batch_size=10, callbacks=[see], verbose=False)
    assert all(map(np.array_equal, *seen))
    assert len(seen[0]) == len(seen[1]) == len(list(ArrayLoader(*data, 10)))


def test_float16_without_it_is_refused_with_what_to_do(build, data):
    net = build()
    net.as_type("float16")
    before = [value.copy() for value in net.param_values()]
    with pytest.raises(ArgumentError, match="mixed_precision='float16'"):
        net.fit(*data, verbose=False)
    trained = [p.name for p in net.params() if p.trainable]
    for name, old, new in zip(net.param_names(), before, net.param_values(), strict=True):
        assert name not in trained or np.array_equal(old, new)


@pytest.mark.parametrize("given", ["float32", True])
def test_other_types_are_refused_and_leave_the_net(build, given):
    net = build()
    compiled = net.compiled
    with pytest.raises(ArgumentError, match=f"expected 'float16', .*received {given!r}"):
        net.compile(SGD(lr=0.1), mixed_precision=given)
    assert net.compiled is compiled
    assert {str(value.dtype) for value in net.param_values()} == {"float32"}


def test_numbers_out_of_range_are_refused():
    for change in ({"scale": 0}, {"growth": 0.5}, {"backoff": 1.0}, {"growth_interval": 0},
                   {"scale": "x"}):  # fmt: skip
        with pytest.raises(ArgumentError, match="MixedPrecision"):
            MixedPrecision(**change)
    made = MixedPrecision(scale=128.0, growth_interval=5)
    other = MixedPrecision.from_config(json.loads(json.dumps(made.to_config())))
    with pytest.raises(DataError, match="'scale'"):
        other.load_state_dict({"scale": np.array(2.0)})
    assert (other.scale, other.growth_interval) == (128.0, 5)


@pytest.mark.parametrize("precision", [None, "float16"])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"clip": 0.3, "clip_by": "global"}, {"clip": 0.3, "clip_by": "global", "accumulate": 2}],
)
def test_a_device_trains_as_the_cpu_does(build, data, xp, precision, arguments):
    if xp is np:
        pytest.skip("the other tests are about the CPU")
    losses, weights = [], []
    for there in (False, True):
        net = build()
        x, y = data
        if there and xp.__name__ == "cupy":
            net.to_device(cuda())
        elif there:
            net.to_device(Device("device_like", ops_for(xp.zeros(1))))
            x, y = xp.asarray(x), xp.asarray(y)
        net.compile(SGD(lr=0.1, momentum=0.9), mixed_precision=precision)
        losses += [net.fit(x, y, batch_size=10, epochs=2, verbose=False, **arguments)["loss"]]
        weights += [[ops_for(v).host(v).astype(np.float32) for v in net.param_values()]]
    # A GPU sums in another order, and rounds float16 there: 5e-4 each time.
    near = {"rtol": 1e-4, "atol": 1e-5} if precision is None else {"rtol": 2e-2, "atol": 2e-3}
    np.testing.assert_allclose(losses[1], losses[0], **near)
    for a, b in zip(*weights, strict=True):
        np.testing.assert_allclose(b, a, **near)


def test_callbacks_see_each_layer_and_metrics_each_sample_once(build, data):
    seen, nets = [], [build(), build()]
    count = at("on_layer_gradients", lambda session, *_: seen.append(session.layer))
    clip = {"clip": 1e9, "clip_by": "global"}
    a = nets[0].fit(*data, batch_size=10, callbacks=[count], verbose=False, **clip)
    assert len(seen) == 5 * len(nets[0].layers)
    assert a == nets[1].fit(*data, batch_size=10, verbose=False)


def test_updates_and_gradients_too_small_for_float16_are_not_lost():
    """1 − k 1e-5: in float16 the neighbour of 1 is 4.9e-4 away, and no step would be taken.

    A gradient of 2e-8 is zero in float16; times a scale of 2^15 it is not.
    """
    net = weight_of_one(SGD(lr=1e-5))
    net.fit(np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32), epochs=100, verbose=False)
    assert net.param_values()[0][0, 0] == np.float16(1 - 1e-3)
    x, steps = np.full((1, 1), 1e-4, np.float32), {}
    for scale in (1.0, 2.0**15):
        net = weight_of_one(SGD(lr=1.0), scale=scale)
        net.fit(x, x - 2e-4, epochs=1, verbose=False)
        steps[scale] = 1.0 - float(net.compiled.precision.state_dict()["master/fc/weight"][0, 0])
    assert steps[1.0] == 0.0
    assert steps[2.0**15] == pytest.approx(2e-8, rel=2.0)


def test_the_scale_falls_until_it_fits_and_grows_after_so_many_good_steps(half, data):
    def scales(batch_size=10, epochs=2, **given):
        seen, net = [], half(**given)
        precision = net.compiled.precision
        look = at("on_batch_end", lambda *_: seen.append((precision.scale, precision.skipped)))
        net.fit(*data, batch_size=batch_size, epochs=epochs, callbacks=[look], verbose=False)
        return [(np.log2(scale), skipped) for scale, skipped in seen], net

    seen, _ = scales(scale=2.0**40, backoff=2.0**-8)
    assert all(scale == 40 - 8 * count for scale, count in seen)
    counts = [count for _, count in seen]
    assert counts[:2] == [1, 2]
    assert counts[4] == counts[-1] < 5
    seen, _ = scales(scale=4.0, growth=4.0, growth_interval=3)
    assert seen == [(2 + 2 * ((k + 1) // 3), 0) for k in range(10)]
    # A skipped step begins the count anew.
    _, net = scales(25, 1, scale=4.0, growth_interval=3)
    precision = net.compiled.precision
    assert precision.good == 2
    precision.scale = 2.0**60
    net.train_on_batch(*data)
    assert (precision.good, precision.scale) == (0, 2.0**59)
