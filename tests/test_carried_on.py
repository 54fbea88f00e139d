"""What SINGA, MXNet and Hetu have, and how each of it is reached here or where it is told."""

from __future__ import annotations

import re

import numpy as np
import pytest

import singanet
from singanet import Executor, FeedForwardNet, Input, layers, optimizer, parallel
from singanet.base import elsewhere
from singanet.errors import SignatureError, SingaNetError, UnknownNameError
from singanet.executor import gradients
from singanet.layers import Dense, Embedding
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD

ROWS = np.ones((4, 3), np.float32)


@pytest.fixture(scope="module")
def net():
    return FeedForwardNet([Dense("fc", 2, input_sample_shape=(3,))], loss=SoftmaxCrossEntropy())


@pytest.fixture(scope="module")
def drawn():
    x, y = Input("x", (3,)), Input("y", (), dtype="int64")
    return SoftmaxCrossEntropy()(Dense("fc", 2)(x), y)


def trained(loss, **others):
    return Executor({"train": [loss, SGD(0.1).minimize(loss)]}, **others)


ATTRIBUTES = [
    (lambda net, drawn: optimizer.DistOpt, "AllReduce"),
    (lambda net, drawn: parallel.DistOpt, "SparseAllReduce"),
    (lambda net, drawn: SGD(0.1).backward_and_update, "AllReduce"),
    (lambda net, drawn: SGD(0.1).backward_and_sparse_update, "SparseAllReduce"),
    (lambda net, drawn: parallel.AllReduce(SGD(0.1)).backward_and_sparse_update, "ratio=0.05"),
    (lambda net, drawn: parallel.AllReduce(SGD(0.1)).backward_and_partial_update, "PartialUpdate"),
    (lambda net, drawn: parallel.AllReduce(SGD(0.1)).backward_and_update_half, "'float16'"),
    (lambda net, drawn: parallel.AllReduce(SGD(0.1)).world_size, "optimizer.comm.size"),
    (lambda net, drawn: parallel.AllReduce(SGD(0.1)).global_rank, "optimizer.comm.rank"),
    (lambda net, drawn: singanet.device.EnableGraph, "net.programs.enabled"),
    (lambda net, drawn: singanet.device.cpu().EnableGraph, "net.programs.enabled"),
    (lambda net, drawn: singanet.device.cpu().SetVerbosity, r"report\(\).table"),
    (lambda net, drawn: singanet.device.create_cuda_gpu, r"device.cuda\(0\)"),
    (lambda net, drawn: net.topo_sort, r"net.ordered\(\)"),
    (lambda net, drawn: net.ordered_layers, "net.layers"),
    (lambda net, drawn: net.src_of_layer, r"net.nodes\(\)"),
    (lambda net, drawn: net.dst_of_layer, r"net.nodes\(\)"),
    (lambda net, drawn: net.verbose, r"net.summary\(\)"),
    (lambda net, drawn: singanet.tensor, "NumPy's or CuPy's"),
    (lambda net, drawn: singanet.snapshot, r"net.save\(path\)"),
    (lambda net, drawn: trained(drawn).get_batch_num, r"executor.batches\(name\)"),
    (lambda net, drawn: trained(drawn).subexecutor, "executor.programs"),
    (lambda net, drawn: singanet.worker_init, "singanet launch"),
    (lambda net, drawn: parallel.worker_init, "singanet launch"),
    (lambda net, drawn: singanet.executor.dataloader_op, "from_loader"),
]
"""Attributes of SINGA and Hetu, and words of what is said of each."""

ARGUMENTS = [
    (lambda net, drawn: net.compile("sgd", use_graph=True), "net.programs.enabled"),
    (lambda net, drawn: net.forward(True, ROWS, freeze="fc"), r"net.freeze\(layer\)"),
    (lambda net, drawn: net.backward(ROWS, freeze="fc"), r"net.freeze\(layer\)"),
    (lambda net, drawn: net.train(ROWS, ROWS, freeze="fc"), r"net.freeze\(layer\)"),
    (lambda net, drawn: net.step(ROWS, ROWS, SGD(0.1), freeze="fc"), r"net.freeze\(layer\)"),
    (lambda net, drawn: trained(drawn, ctx=None), "called device here"),
    (lambda net, drawn: trained(drawn, comm_mode="PS"), "ParameterServer"),
    (lambda net, drawn: trained(drawn, cstable_policy="LFU"), "Embedding"),
    (lambda net, drawn: trained(drawn, cache_bound=10), "pull_bound"),
    (lambda net, drawn: trained(drawn, bsp=0), "consistency="),
    (lambda net, drawn: parallel.Hybrid(SGD(0.1), bsp=0), "called consistency here"),
    (lambda net, drawn: Embedding("e", 9, 2, ctx=None), r"net.to_device"),
    (lambda net, drawn: trained(drawn).run("train", feed_dict={}), "executor.run.*called feed"),
    (lambda net, drawn: trained(drawn).run("train", eval_node_list=[]), "called outputs here"),
    (lambda net, drawn: trained(drawn).run("train", convert_to_numpy_ret_vals=True), "leave it"),
    (lambda net, drawn: SGD(0.1).minimize(drawn, var_list=[]), "called params here"),
    (lambda net, drawn: parallel.AllReduce(SGD(0.1)).minimize(drawn, var_list=[]), "called params"),
    (lambda net, drawn: gradients(drawn, ["fc/weight"], insert_grad=drawn), "called dys here"),
    (lambda net, drawn: parallel.SparseAllReduce(SGD(0.1), spars=0.05), "ratio=.*threshold="),
    (lambda net, drawn: parallel.SparseAllReduce(SGD(0.1), topK=True), "ratio=.*threshold="),
    (lambda net, drawn: parallel.SparseAllReduce(SGD(0.1), corr=True), "called error_feedback"),
]
"""Arguments of theirs, and words of what is said of each."""


@pytest.mark.parametrize(("ask", "words"), ATTRIBUTES)
def test_attributes_that_users_of_singa_and_hetu_type(net, drawn, ask, words):
    with pytest.raises(UnknownNameError, match=words) as caught:
        ask(net, drawn)
    assert isinstance(caught.value, AttributeError)


@pytest.mark.parametrize(("call", "words"), ARGUMENTS)
def test_arguments_that_users_of_singa_and_hetu_type(net, drawn, call, words):
    with pytest.raises(SignatureError, match=words) as caught:
        call(net, drawn)
    assert isinstance(caught.value, TypeError)


def test_what_advice_names_is_there():
    texts = [*elsewhere._GONE.values(), *elsewhere._INSTEAD.values()]
    texts += [text for table in elsewhere._ATTRIBUTES.values() for text in table.values()]
    found = [name for text in texts for name in re.findall(r"\bsinganet(?:\.\w+)+", text)]
    for name in found:
        thing = singanet
        for part in name.split(".")[1:]:
            thing = getattr(thing, part)
    assert len(set(found)) > 10


def two_branches():
    x, z, t = Input("x", (3,)), Input("z", (None, 3)), Input("t", (4,), dtype="int64")
    words = layers.Embedding("words", 9, 2)(t)
    parts = [Dense("left", 2)(x), layers.LSTM("steps", 2, return_sequences=True)(z)]
    return FeedForwardNet(inputs=[x, z, t], outputs=[*parts, words], seed=0)


@pytest.mark.parametrize("level", ["none", "sqrt"])
@pytest.mark.parametrize("recorded", [False, True])
def test_every_layer_in_output_is_answered(level, recorded):
    """ "At the end the key set includes all layers in the output arg", of SINGA-315."""
    net = two_branches()
    net.programs.enabled, net.programs.recompute = recorded, level
    rng = np.random.default_rng(0)
    names = ["x", "z", "t", "words", "steps", "left"]
    for _ in range(4):
        batch = int(rng.integers(1, 5))
        x = rng.standard_normal((batch, 3)).astype(np.float32)
        z = rng.standard_normal((batch, 6, 3)).astype(np.float32)
        net.forward(True, {"x": x, "z": z, "t": np.ones((batch, 4), int)})
        dy = rng.standard_normal((batch, 2)).astype(np.float32)
        seen, passed = set(), []
        for item in net.backward({"left": dy}, names):
            assert seen < item.output_grads.keys()
            seen = set(item.output_grads)
            passed.append(item.layer)
        assert seen == set(names)
        assert set(passed) == seen, "each once"
        assert len(passed) == len(seen)
        grads = item.output_grads
        want = dy @ net["left"].params["weight"].value.T
        np.testing.assert_allclose(grads["x"], want, rtol=1e-5, atol=1e-6)
        assert grads["t"] is None
        for name, shape in [("z", (6, 3)), ("words", (4, 2)), ("steps", (6, 2))]:
            assert grads[name].shape == (batch, *shape)
            assert grads[name].dtype == np.float32
            assert not grads[name].any()


def test_layers_that_nothing_trained_is_behind_are_answered(net):
    """Also where the walk would not come by any layer."""
    x, z = Input("x", (3,)), Input("z", (3,))
    made = FeedForwardNet(inputs=[x, z], outputs=[layers.Flatten("a")(x), layers.Flatten("b")(z)])
    made.forward(True, {"x": ROWS, "z": ROWS})
    *_, last = made.backward({"a": ROWS}, ["z"])
    assert not last.output_grads["z"].any()


@pytest.mark.parametrize("flag", [np.True_, np.bool_(False), np.int64(4), 8])
def test_flags_of_numpy(net, flag):
    out = net.forward(flag, ROWS)
    if flag in (True, 4):
        assert len(list(net.backward(np.ones_like(out)))) == 1
    layer = Dense("fc", 2)
    layer.recompute = np.True_
    assert layer.recompute is True


def test_data_for_a_layer_that_reads_others():
    """SINGA: put a Dummy before it; the advice, followed, works."""
    made = FeedForwardNet(seed=0)
    made.add(Dense("a", 4, input_sample_shape=(3,)))
    made.add(Dense("b", 2))
    with pytest.raises(UnknownNameError, match="'b', which reads other layers; put a Dummy"):
        made.forward(False, {"a": ROWS, "b": np.ones((4, 4), np.float32)})
    made = FeedForwardNet(seed=0)
    a = made.add(Dense("a", 4, input_sample_shape=(3,)))
    beside = made.add(layers.Dummy("beside", input_sample_shape=(4,)), src=[])
    made.add(Dense("b", 2), made.add(layers.Merge("both"), [a, beside]))
    zero = made.forward(False, {"a": ROWS, "beside": np.zeros((4, 4), np.float32)})
    one = made.forward(False, {"a": ROWS, "beside": np.ones((4, 4), np.float32)})
    want = made["b"].params["weight"].value.sum(axis=0)
    np.testing.assert_allclose(one - zero, np.broadcast_to(want, one.shape), rtol=1e-5)


def test_known_names_are_listed_once():
    x = Input("x", (3,))
    made = FeedForwardNet(inputs=x, outputs=Dense("h", 2)(x))
    with pytest.raises(UnknownNameError) as caught:
        made.gradients("h", "q", ROWS)
    assert caught.value.expected.count("'x'") == 1


@pytest.mark.parametrize("ask", ["memory", "plan", "summary"])
def test_an_extent_that_is_missing_is_told_by_no_other_name(ask):
    x = Input("steps", (None, 3))
    made = FeedForwardNet(inputs=x, outputs=layers.LSTM("h", 2)(x))
    with pytest.raises(SingaNetError, match="layer 'steps': expected extent") as caught:
        getattr(made, ask)(2)
    assert "net." not in str(caught.value).replace(f"net.{ask}", "")
