"""Nets that compare answers, from published language models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from singanet.base.tracebacks import entry_point
from singanet.errors import ArgumentError, brief
from singanet.graph.subgraph import add_upto
from singanet.initializer import Gaussian
from singanet.layers import Dense, Einsum, Input
from singanet.layers.layer import Layer
from singanet.loss import TokenLogProbabilities
from singanet.loss.preference import PreferenceLoss, RewardRanking
from singanet.pretrained.config import Config
from singanet.pretrained.drawing import ArrayPlace, FileArray
from singanet.pretrained.families import family_of
from singanet.pretrained.headed import planned
from singanet.pretrained.heads import SEQUENCE
from singanet.pretrained.loading import PretrainedNet, origin_of

_WHERE = "pretrained.preference_net"
_INPUTS = ["input_ids", "segments"]


@entry_point
def preference_net(
    net: PretrainedNet, loss: PreferenceLoss, seed: int | None = None
) -> PretrainedNet:
    """Return a net that reads both answers of a pair, for batches of `data.Pairs`.

    Its outputs are log-probabilities, (N, 2), or (N, 3) for `ORPO`; the scores of the vocabulary
    are computed in blocks, see `TokenLogProbabilities`. For `RewardRanking` they are scores (N, 2),
    by a new head ``score`` at the last token of each answer. It shares all other parameters with
    ``net``: training one trains the other. `save` and `save_adapter` write it; with a score as a
    model for the classification of sequences with one class. Errors: `ArgumentError` for another
    loss, and for a net that is not causal, does not read "segments", caps its scores, has a
    low-rank pair of its head, or narrow weights: `as_type` and `quantize` are for the new net.

    Args:
        net: A causal net from ``load(folder, inputs=["input_ids", "segments"])``. Low-rank pairs
            are added before, by ``net.adapt``.
        loss: A `DPO`, `ORPO`, `KTO` or `RewardRanking`, the loss of the new net.
        seed: Seed of a new head. None takes the next seed after `singanet.set_seed`, or a fresh
            one.
    """
    if not isinstance(loss, PreferenceLoss):
        raise ArgumentError(
            f"{_WHERE}, loss",
            expected="a loss of preferences, such as DPO()",
            received=brief(loss)[:60],
            advice="train other losses with the net as it is",
        )
    origin = origin_of(net, f"{_WHERE}, net")
    head = _head_of(net)
    (features, _), *_ = net.nodes()[_place(net, head.name)].inputs
    net._execution_plan()  # fills empty parameters by this net's own seed
    made = PretrainedNet(loss, seed=seed)
    made.device, made.dtype, made.most_steps = net.device, net.dtype, net.most_steps
    add_upto(made, net, [features.name])
    made.add(_input("parts", (loss.columns, None)), src=[])
    if isinstance(loss, RewardRanking):
        family = family_of(origin.config, f"{_WHERE}, net")
        plan = planned(origin.config, f"{_WHERE}, net", family, None, SEQUENCE, 1)
        assert plan.form is not None
        place = ArrayPlace(f"{plan.form.out}.weight", transposed=True)
        init = Gaussian(0.0, plan.spread(Config(plan.values, _WHERE), place.name))
        score = Dense("score", 1, use_bias=plan.form.bias, W_specs={"init": init})
        made.add(score, src=features.name)
        made.add(Einsum("answers", "nkt,nti->nk"), src=["parts", "score"])
        made._execution_plan()
        arrays = {name: stored for name, stored in origin.arrays.items() if _others(stored, head)}
        arrays[place.name] = FileArray(place.name, [(score.params["weight"], place)])
        made.origin = replace(origin, config=dict(plan.values), arrays=arrays, form=None)
    else:
        made.add(_input("labels", (None,), "int64"), src=[])
        logs = TokenLogProbabilities("log_probabilities", head)
        logs.trainable = head.trainable
        made.add(logs, src=[features.name, "labels"])
        made.add(Einsum("answers", "nkt,nt->nk"), src=["parts", "log_probabilities"])
        made.origin = origin
    return made


def _others(stored: FileArray, head: Dense) -> bool:
    """Return whether the array is of another layer than the ``head`` alone."""
    return all(param.name.partition("/")[0] != head.name for param, _ in stored.members)


def _input(name: str, shape: Any, dtype: Any = None) -> Layer:
    layer: Any = Input(name, shape, dtype).call.layer
    return layer


def _place(net: PretrainedNet, name: str) -> int:
    return next(k for k, node in enumerate(net.nodes()) if node.name == name)


def _head_of(net: PretrainedNet) -> Dense:
    """Return the layer that makes the scores. Errors: `ArgumentError` for another net."""
    ports = net.ports()
    names = net.config.get("architectures") or [net.config.get("model_type")]
    received, advice = "", ""
    if net.loss is None or [name for name, _ in ports.outputs] != ["logits"]:
        received, advice = str(names[0]), "load a model such as a LlamaForCausalLM"
    elif sorted(ports.inputs) != _INPUTS:
        received = f"inputs {sorted(ports.inputs)}"
        advice = "load it with inputs=['input_ids', 'segments'], which its family must have"
    elif net.executor.can.holds:
        received = "a net of narrow weights"
        advice = "load it in float32, then call as_type or quantize on the net of preferences"
    elif not isinstance(net["logits"], Dense):
        received, advice = f"{names[0]}, with a cap on its scores", "tune another model"
    elif net["logits"].adapters:
        received, advice = "a low-rank pair of the head", "adapt where='attention'"
    if received:
        raise ArgumentError(
            f"{_WHERE}, net",
            expected="a causal net with the inputs 'input_ids' and 'segments'",
            received=received,
            advice=advice,
        )
    head: Any = net["logits"]
    return head
