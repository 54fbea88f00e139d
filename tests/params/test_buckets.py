"""Buckets: small parameters as slices of flat arrays."""

import copy
import gc
import pickle

import numpy as np
import pytest

import singanet
from singanet.initializer import Initializer
from singanet.layers import Activation, BatchNormalization, Dense
from singanet.params.param import Param, ParamSpec
from singanet.params.storage import BUCKET, SMALL, buckets_of, lay, place_of


def host(array):
    return array


def small_net(units=10):
    net = singanet.FeedForwardNet(singanet.loss.SoftmaxCrossEntropy(), seed=3)
    net.add(Dense("one", 16, input_sample_shape=(20,)))
    net.add(Activation("relu"))
    net.add(Dense("two", units))
    return net


def test_arrays_lie_side_by_side_as_they_are_given(rng):
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (5,), (), (2, 1))]
    laid = lay(arrays, host)
    for before, after in zip(arrays, laid, strict=True):
        np.testing.assert_array_equal(before, after)
        assert after.flags.c_contiguous
    (bucket,) = buckets_of(zip("abcd", laid, strict=True))
    assert bucket.names == ("a", "b", "c", "d")
    assert bucket.slices == (slice(0, 12), slice(12, 17), slice(17, 18), slice(18, 20))
    bucket.array[...] = 7.0
    assert all((after == 7.0).all() for after in laid)


def test_a_bucket_is_of_one_type_and_of_a_limited_size():
    fill = SMALL // 4
    arrays = [np.zeros(fill, kind) for kind in ("f4", "f4", "f2", "f4", "f2")]
    found = buckets_of((str(k), a) for k, a in enumerate(lay(arrays, host)))
    assert [bucket.names for bucket in found] == [("0", "1"), ("2", "4"), ("3",)]
    assert all(bucket.array.nbytes <= BUCKET for bucket in found)


def test_what_the_bucket_does_not_hold_itself_has_no_place(rng):
    (laid,) = lay([np.zeros((4, 4), np.float32)], host)
    assert place_of(laid) is not None
    for other in (laid.copy(), laid.T, laid[:], laid.reshape(-1), np.zeros(3), None, 5):
        assert place_of(other) is None
    assert buckets_of([("a", laid), ("b", laid)])[0].names == ("a",)


def test_places_are_forgotten_with_their_arrays():
    from singanet.params.storage import _places

    gc.collect()  # what earlier tests left
    before = len(_places)
    laid = lay([np.zeros(4, np.float32)] * 3, host)
    assert len(_places) == before + 3
    del laid
    gc.collect()
    assert len(_places) == before


def test_values_are_the_bits_of_parameters_alone():
    net = small_net()
    for param in net.params():
        alone = Param(ParamSpec(param.name), param.shape, param.initializer, param.fans)
        alone.seed = net.seed
        np.testing.assert_array_equal(param.value, alone.value)


def test_a_user_s_initializer_is_asked_in_the_order_of_the_layers():
    class Counts(Initializer):
        def __init__(self):
            self.count = 0

        def __call__(self, rng, shape, fans):
            self.count += 1
            return np.full(shape, float(self.count), np.float32)

    counts = Counts()
    net = singanet.FeedForwardNet(seed=0)
    net.add(Dense("one", 3, W_specs={"init": counts}, input_sample_shape=(2,)))
    net.add(Dense("two", 3, W_specs={"init": counts}))
    assert [value.flat[0] for value in net.param_values()] == [1.0, 0.0, 2.0, 0.0]


def test_the_order_is_that_of_a_walk_back(rng):
    net = small_net()
    (bucket,) = net.buckets()
    net.forward(True, rng.standard_normal((2, 20)).astype(np.float32))
    yielded = [name for item in net.backward(np.ones((2, 10), np.float32)) for name in item.names]
    assert list(bucket.names) == yielded
    assert [part.stop for part in bucket.slices][:-1] == [p.start for p in bucket.slices][1:]


def test_large_untrained_and_state_lie_apart():
    net = small_net(SMALL // 16)
    net.add(BatchNormalization("norm"))
    net.add(Dense("fixed", 3, W_specs={"trainable": False}))
    assert [name for bucket in net.buckets() for name in bucket.names] == [
        "fixed/bias", "norm/gamma", "norm/beta", "two/bias", "one/weight", "one/bias",
    ]  # fmt: skip


def test_what_was_looked_at_before_the_net_stays_where_it_is():
    layer = Dense("one", 4, input_sample_shape=(3,))
    layer.get_output_sample_shape()
    held = layer.params["weight"].value
    net = singanet.FeedForwardNet([layer, Dense("two", 2)], seed=0)
    assert net.params()[0].value is held
    assert net.buckets()[0].names == ("two/weight", "two/bias", "one/bias")


def test_layers_added_later_move_nothing():
    net = small_net()
    held = net.param_values()
    net.add(Dense("three", 4))
    assert all(a is b for a, b in zip(held, net.param_values(), strict=False))
    assert [bucket.names for bucket in net.buckets()] == [
        ("three/weight", "three/bias"), ("two/weight", "two/bias", "one/weight", "one/bias"),
    ]  # fmt: skip


def test_an_assigned_array_is_the_parameters_and_leaves_the_bucket():
    net = small_net()
    param, before = net.params()[0], net.params()[0].value
    mine = np.zeros((20, 16), np.float32)
    param.value = mine
    assert param.value is mine
    assert "one/weight" not in net.buckets()[0].names
    param.value = before
    assert "one/weight" in net.buckets()[0].names
    param.value = mine
    net._regroup()
    assert net.buckets()[0].names[2] == "one/weight"
    mine[...] = 1.0
    assert not param.value.any()


def test_one_array_of_two_parameters_counts_once():
    net = small_net()
    net.add(Dense("three", 10))
    net.add(Dense("four", 10))
    three, four = net.params()[4], net.params()[6]
    four.value = three.value
    (bucket,) = net.buckets()
    assert ("four/weight" in bucket.names) != ("three/weight" in bucket.names)


def test_a_shared_parameter_and_a_nested_one_have_one_place():
    inner = singanet.FeedForwardNet([Dense("fc", 6, input_sample_shape=(6,))], name="in", seed=1)
    net = singanet.FeedForwardNet(seed=0)
    net.add(Dense("first", 6, input_sample_shape=(6,)))
    net.add(inner)
    net.add(Dense("last", 6, W_specs=net.params()[0]))
    assert [bucket.names for bucket in inner.buckets()] == [("fc/weight", "fc/bias")]
    names = [name for bucket in net.buckets() for name in bucket.names]
    assert sorted(names) == sorted(net.param_names())
    assert np.shares_memory(inner.buckets()[0].array, net.params()[2].value)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_have_buckets_of_their_own(how):
    net = small_net()
    made = how(net)
    (old,), (new,) = net.buckets(), made.buckets()
    assert old.names == new.names
    assert not np.shares_memory(old.array, new.array)
    np.testing.assert_array_equal(old.array, new.array)
    made.params()[0].value[...] = 0.0
    assert net.params()[0].value.any()


def test_who_holds_an_array_beside_the_net_holds_that_of_the_copy():
    net = small_net()
    made, held = copy.deepcopy((net, net.param_values()))
    assert all(a is b for a, b in zip(held, made.param_values(), strict=True))
    held, made = copy.deepcopy((net.param_values(), net))
    assert all(a is b for a, b in zip(held, made.param_values(), strict=True))


def test_other_types_and_devices_have_buckets_too(xp):
    net = small_net()
    before = [value.copy() for value in net.param_values()]
    net.as_type("float64")
    assert net.buckets()[0].array.dtype == np.float64
    held = net.param_values()
    net.to_device(singanet.device.cpu())
    assert all(a is b for a, b in zip(held, net.param_values(), strict=True))
    if xp is not np:
        net.to_device(singanet.device.Device("there", singanet.ops.ops_for(xp.zeros(1))))
    (bucket,) = net.buckets()
    assert isinstance(bucket.array, xp.ndarray)
    assert all(isinstance(value, xp.ndarray) for value in net.param_values())
    for value, old in zip(net.param_values(), before, strict=True):
        np.testing.assert_array_equal(singanet.ops.ops_for(value).host(value), old)


def test_a_read_model_has_buckets(tmp_path):
    net = small_net()
    net.save_model(tmp_path / "model")
    made = singanet.load_model(tmp_path / "model")
    assert [bucket.names for bucket in made.buckets()] == [bucket.names for bucket in net.buckets()]
    np.testing.assert_array_equal(made.buckets()[0].array, net.buckets()[0].array)


def test_loading_weights_keeps_the_live_arrays(tmp_path):
    net, other = small_net(), small_net()
    net.params()[0].value[...] = 2.0
    net.save(tmp_path / "weights.npz")
    held = other.param_values()
    other.load(tmp_path / "weights.npz")
    assert all(a is b for a, b in zip(held, other.param_values(), strict=True))
    np.testing.assert_array_equal(other.buckets()[0].array, net.buckets()[0].array)


def test_a_parameter_made_read_only_is_so_alone():
    net = small_net()
    net.params()[0].value.flags.writeable = False
    assert net.params()[1].value.flags.writeable
    assert net.params()[0].is_constant
    assert "one/weight" in net.buckets()[0].names
