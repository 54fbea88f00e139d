"""Tied tables that are updated by the gradient of each use: the same steps to rounding."""

from typing import Any

import numpy as np
import pytest

from singanet import FeedForwardNet, Input, load_model, pretrained
from singanet.errors import ArgumentError
from singanet.layers import Activation, Add, Dense, Embedding
from singanet.loss import SoftmaxCrossEntropy, head_loss
from singanet.optimizer import SGD, Accumulator, ClipNorm, Optimizer

WORDS, WIDTH, STEPS = 29, 6, 5


def net_of(twice: bool = False, layers: int = 2, words: int = WORDS, width: int = WIDTH) -> Any:
    """Words, some layers, and scores by the same table; ``twice`` looked up."""
    ids = Input("ids", (STEPS,), "int64")
    table = Embedding("table", words, width)
    x = table(ids)
    if twice:
        more = Embedding("more", words, width, W_specs=table.params["weight"])
        x = Add("both")(x, more(ids))
    for k in range(layers):
        x = Activation(f"tanh{k}", "tanh")(Dense(f"mid{k}", width)(x))
    shared: Any = {"W_specs": table.params["weight"], "W_transpose": True}
    scores = Dense("head", words, **shared)(x)
    return FeedForwardNet(SoftmaxCrossEntropy(), inputs=ids, outputs=scores, seed=1)


def batch(seed: int, words: int = WORDS) -> Any:
    return np.random.default_rng(seed).integers(0, words, (2, 4, STEPS))


def trained(net: Any, rule: Any, steps: int = 5) -> Any:
    losses = [net.step(*batch(k), rule)[0] for k in range(steps)]
    return losses, {param.name: param.peek().copy() for param in net.params()}


def expect_alike(one: Any, other: Any) -> None:
    assert np.allclose(one[0], other[0], rtol=1e-5)
    for name, value in one[1].items():
        assert np.allclose(value, other[1][name], atol=1e-6), name


def rate(step: int) -> float:
    """One that tells each step from the others."""
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
    shapes: dict[bool, Any] = {}

    class Told(SGD):
        def update(self, names, values, grads, scale=1.0):
            told.append(("whole", *names))
            super().update(names, values, grads, scale)

        def _update_part(self, names, values, grads):
            told.append(("part", *names))
            super()._update_part(names, values, grads)

    for each in (True, False):
        told: list[Any] = []
        net = net_of(layers=1)
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

    def two_heads() -> Any:
        ids = Input("ids", (STEPS,), "int64")
        x = Embedding("table", WORDS, WIDTH)(ids)
        square = Dense("one", WIDTH)
        y = square(x)
        again = Dense("two", WIDTH, W_specs=square.params["weight"])
        scores = Dense("head", WORDS)(again(y))
        return FeedForwardNet(SoftmaxCrossEntropy(), inputs=ids, outputs=scores, seed=1)

    found = []
    for each in (True, False):
        net, rule = two_heads(), SGD(lr=0.1, each_use=each)
        found.append(trained(net, rule))
        net, rule = net_of(), Accumulator(SGD(lr=0.1, each_use=each), 2)
        found.append(trained(net, rule))
        net, rule = net_of(words=3000, width=8), SGD(lr=0.1, each_use=each)
        net.offload(tmp_path / str(each), "200kB")
        found.append(trained(net, rule))
        net, seen = net_of(), []
        rule = SGD(lr=0.1, each_use=each)
        for k in range(3):
            net.step(*batch(k), rule, lambda item, s=seen: s.extend(item.names))
        found.append(([seen.count("table/weight")], {p.name: p.value for p in net.params()}))
    for one, other in zip(found[:4], found[4:], strict=True):
        assert one[0] == other[0]
        assert all(np.array_equal(one[1][name], other[1][name]) for name in one[1])


def test_a_parameter_with_decay_of_its_own_is_summed():
    found = []
    for each in (True, False):
        net = net_of()
        from dataclasses import replace

        weight = net["table"].params["weight"]
        weight.spec = replace(weight.spec, regularizer=0.1)
        found.append(trained(net, SGD(lr=0.1, each_use=each)))
    assert found[0][0] == found[1][0]


@pytest.mark.parametrize(
    "given", [{"momentum": 0.9}, {"weight_decay": 0.1}, {"constraint": ClipNorm(1.0)}]
)
def test_what_needs_the_whole_gradient_is_refused(given):
    with pytest.raises(ArgumentError, match="each_use"):
        SGD(lr=0.1, each_use=True, **given)


def test_the_choice_is_part_of_the_model(tmp_path):
    net = net_of()
    net.compile(SGD(lr=0.1, each_use=True), net.loss)
    net.save_model(tmp_path / "net.singanet")
    again: Optimizer = load_model(tmp_path / "net.singanet").compiled.optimizer  # type: ignore[attr-defined]
    assert again.each_use
    net.step(*batch(0), net.compiled.optimizer)
    net.step(*batch(1), net.compiled.optimizer)
    net.compiled.optimizer.each_use = False
    other = net_of()
    for param, same in zip(other.params(), net.params(), strict=True):
        param.value[...] = same.value
    for each, rule in ((net, net.compiled.optimizer), (other, SGD(lr=0.1))):
        each.step(*batch(2), rule)
        each.step(*batch(3), rule)
    for one, same in zip(net.params(), other.params(), strict=True):
        assert np.array_equal(one.value, same.value)
