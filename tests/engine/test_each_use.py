"""Tied tables that are updated by the gradient of each use: the same steps to rounding."""

from dataclasses import replace

import numpy as np
import pytest

from singanet import FeedForwardNet, Input, load_model, pretrained
from singanet.errors import ArgumentError
from singanet.layers import Activation, Add, Dense, Embedding
from singanet.loss import SoftmaxCrossEntropy, head_loss
from singanet.optimizer import SGD, Accumulator, ClipNorm
from tests.kit.ranks import expect_same_bits

WORDS, WIDTH, STEPS = 29, 6, 5


def net_of(twice=False, layers=2, words=WORDS, width=WIDTH):
    """Words, some layers, and scores by the same table; ``twice`` looked up."""
    ids, table = Input("ids", (STEPS,), "int64"), Embedding("table", words, width)
    x, shared = table(ids), table.params["weight"]
    if twice:
        x = Add("both")(x, Embedding("more", words, width, W_specs=shared)(ids))
    for k in range(layers):
        x = Activation(f"tanh{k}", "tanh")(Dense(f"mid{k}", width)(x))
    scores = Dense("head", words, W_specs=shared, W_transpose=True)(x)
    return FeedForwardNet(SoftmaxCrossEntropy(), inputs=ids, outputs=scores, seed=1)


def batch(seed):
    return np.random.default_rng(seed).integers(0, WORDS, (2, 4, STEPS))


def trained(net, rule, steps=5):
    losses = [net.step(*batch(k), rule)[0] for k in range(steps)]
    return losses, {param.name: param.peek().copy() for param in net.params()}


def expect_alike(one, other):
    assert np.allclose(one[0], other[0], rtol=1e-5)
    for name, value in one[1].items():
        assert np.allclose(value, other[1][name], atol=1e-6), name


def rate(step):
    """Tells each step from the others."""
    return 0.5 / (1 + step)


@pytest.mark.few(6)
@pytest.mark.parametrize("level", ["none", "cheap", "blocks"])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("blocks", [False, True])
def test_steps_are_those_of_the_sum_to_rounding(monkeypatch, blocks, twice, recorded, level):
    monkeypatch.setattr(head_loss, "BLOCK", (3 if blocks else 1 << 20) * WORDS * 4)
    monkeypatch.setattr(head_loss, "FEWEST_ROWS", 1)
    found = []
    for each in (True, False):
        net, rule = net_of(twice), SGD(lr=rate, each_use=each)
        net.programs.enabled, net.programs.recompute = recorded, level
        found.append(trained(net, rule))
        assert not net.programs.refusals
        assert {state.step for state in rule.states()} == {5}
        assert bool(net._execution_plan().headed) is blocks
        if recorded:
            names = [k.name for k in net.programs.reports()[-1].kernels]
            assert ("add to rows" in names) is not each
    expect_alike(*found)


def test_no_use_waits_for_another():
    shapes = {}

    class Told(SGD):
        def update(self, names, values, grads, scale=1.0):
            told.append(("whole", *names))
            super().update(names, values, grads, scale)

        def _update_part(self, names, values, grads):
            told.append(("part", *names))
            super()._update_part(names, values, grads)

    for each in (True, False):
        told, net = [], net_of(layers=1)
        net.programs.enabled = False
        net.step(*batch(0), Told(lr=0.1, each_use=each))
        shapes[each] = [entry for entry in told if len(entry) > 1]
    middle = ("whole", "mid0/weight", "mid0/bias")
    assert shapes[True] == [
        ("part", "table/weight"), ("whole", "head/bias"), middle, ("whole", "table/weight"),
    ]  # fmt: skip
    assert shapes[False] == [("whole", "head/bias"), middle, ("whole", "table/weight")]


@pytest.mark.full
def test_blocks_that_run_again_run_beside_no_table(monkeypatch):
    monkeypatch.setattr(head_loss, "BLOCK", 1 << 18)
    monkeypatch.setattr(head_loss, "FEWEST_ROWS", 16)
    config = {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 96, "vocab_size": 2000,
        "num_attention_heads": 2, "num_hidden_layers": 3, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": True,
    }  # fmt: skip
    ids = np.random.default_rng(0).integers(0, 2000, (2, 2, 300))
    told, taken, found = {}, {}, []
    for each in (True, False):
        net, rule = pretrained.build(config, seed=1), SGD(lr=0.1, each_use=each)
        net.programs.recompute = "blocks"
        told[each] = net.memory(2, rule, extent=300).total
        losses = [net.step(*ids, rule)[0] for _ in range(4)]
        taken[each] = net.programs.reports()[-1].layout.nbytes
        assert not net.programs.refusals
        found.append((losses, {param.name: param.value.copy() for param in net.params()}))
    expect_alike(*found)
    for each in (told, taken):
        assert each[True] < each[False] - 2000 * 32 * 2


def test_where_it_cannot_be_so_gradients_are_summed(tmp_path):
    """For callbacks, behind stages, in a folder, where another use reads values, with decay."""

    def two_heads():
        ids, square = Input("ids", (STEPS,), "int64"), Dense("one", WIDTH)
        y = square(Embedding("table", WORDS, WIDTH)(ids))
        again = Dense("two", WIDTH, W_specs=square.params["weight"])
        scores = Dense("head", WORDS)(again(y))
        return FeedForwardNet(SoftmaxCrossEntropy(), inputs=ids, outputs=scores, seed=1)

    found = {}
    for each in (True, False):

        def rule(each=each):
            return SGD(lr=0.1, each_use=each)

        behind, decayed, watched, seen = net_of(words=3000, width=8), net_of(), net_of(), []
        behind.offload(tmp_path / str(each), "200kB")
        spec = decayed["table"].params["weight"]
        spec.spec = replace(spec.spec, regularizer=0.1)
        for k in range(3):
            watched.step(*batch(k), rule(), lambda item, s=seen: s.extend(item.names))
        found[each] = [
            trained(two_heads(), rule()), trained(net_of(), Accumulator(rule(), 2)),
            trained(behind, rule()), trained(decayed, rule()),
            ([seen.count("table/weight")], {p.name: p.value for p in watched.params()})
        ]  # fmt: skip
    for one, other in zip(*found.values(), strict=True):
        assert one[0] == other[0]
        assert all(np.array_equal(one[1][name], other[1][name]) for name in one[1])


@pytest.mark.parametrize("given",
    [{"momentum": 0.9}, {"weight_decay": 0.1}, {"constraint": ClipNorm(1.0)}])  # fmt: skip
def test_what_needs_the_whole_gradient_is_refused(given):
    with pytest.raises(ArgumentError, match="each_use"):
        SGD(lr=0.1, each_use=True, **given)


def test_the_choice_is_part_of_the_model(tmp_path):
    net, other = net_of(), net_of()
    net.compile(rule := SGD(lr=0.1, each_use=True), net.loss)
    net.save_model(tmp_path / "net.singanet")
    assert load_model(tmp_path / "net.singanet").compiled.optimizer.each_use
    for k in range(2):
        net.step(*batch(k), rule)
    rule.each_use = False
    for param, same in zip(other.params(), net.params(), strict=True):
        param.value[...] = same.value
    for each, optimizer in ((net, rule), (other, SGD(lr=0.1))):
        for k in (2, 3):
            each.step(*batch(k), optimizer)
    expect_same_bits([net, other])
