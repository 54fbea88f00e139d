"""Nets with a head: the config and the names of arrays for its class, and its layers."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet import functional
from singanet.base.arguments import is_int
from singanet.errors import ArgumentError, brief, did_you_mean, one_of
from singanet.layers import Concat, Index, LayerNorm
from singanet.layers.symbol import Symbol, apply, calls_between
from singanet.loss import MultiLoss, SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.params.param import Param
from singanet.pretrained.config import Config, SentencePooling, last_step
from singanet.pretrained.drawing import ArrayPlace, Family, ModelDrawing
from singanet.pretrained.heads import (
    CHOICE,
    EMBEDDING,
    HEADS,
    KINDS,
    OF_CLASSES,
    OF_HEADS,
    QUESTION,
    SEQUENCE,
    TOKEN,
    HeadForm,
    Heads,
    Spread,
    classes_of,
    kind_of,
    usual_spread,
)
from singanet.types import Array


@dataclass
class HeadPlan:
    """The head of a net: its ``kind``, or None, and its ``form`` if it is drawn here.

    ``values`` is the config. ``names`` maps the arrays' names to the names in the files; it is None
    without files. ``changes`` is whether the files have another head, ``choices`` the number of
    choices of a sample, or 0. ``base`` is the class that the family draws, ``prefix`` the prefix of
    its arrays.
    """

    kind: str | None
    form: HeadForm | None
    architecture: str
    base: str
    values: Mapping[str, Any]
    names: dict[str, str] | None
    changes: bool = False
    choices: int = 0
    prefix: str = ""
    spread: Spread = usual_spread

    def is_new(self, name: str, added: frozenset[str]) -> bool:
        """Return whether a missing array may be drawn: one of the head, ``added`` by its layers."""
        if not self.changes or self.kind == EMBEDDING:
            return False
        if self.form is not None:
            return name in added
        return not name.startswith(self.prefix) if self.prefix else bool(OF_HEADS.match(name))

    def drops(self, name: str) -> bool:
        """Return whether the array is the pooler of a model whose other head does without it."""
        return self.changes and ".pooler." in f".{name}"

    def drawn_value(self, param: Param, name: str, seed: int) -> Array:
        """Return new values of the array ``name``, as in transformers: normal, or 0 and 1."""
        if name.endswith(".bias"):
            return np.zeros(param.shape)
        if len(param.shape) == 1:
            return np.ones(param.shape)
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        spread = self.spread(Config(self.values, "config"), name)
        return rng.normal(0.0, spread, param.shape)


def planned(
    values: Mapping[str, Any],
    where: str,
    family: Family,
    names: dict[str, str] | None,
    head: str | None = None,
    classes: int | Sequence[str] | None = None,
) -> HeadPlan:
    """Return the head for the config ``values`` and the arrays ``names``.

    ``head`` is the wanted kind, None for the class in the config, and ``classes`` the wanted
    classes. Errors: `ConfigError` for an unsupported class; `ArgumentError` for a head that the
    family does not have, or for classes without a head of classes.
    """
    model_type = values.get("model_type")
    known = classes_of(model_type, family)
    found = family.architecture(values, where, known)
    row = HEADS.get(str(model_type), Heads(""))
    if head is not None and head not in KINDS:
        raise ArgumentError(
            "pretrained.load, head",
            expected=one_of(KINDS, 8),
            received=brief(head)[:80],
            advice=did_you_mean(str(head), KINDS, "omit it for the head of the folder"),
        )
    own = kind_of(found)
    kind = own if head is None else head
    architecture = found
    if head is not None and own != head:
        architecture = _class_for(head, found, row, family)
    if classes is not None:
        _expect_classes(classes, kind, architecture)
    form = row.heads.get(kind) if kind is not None else None
    form = form if form is not None and form.architecture == architecture else None
    plan = HeadPlan(kind, form, architecture, architecture, values, names)
    if form is not None:
        plan.base, plan.prefix, plan.spread = form.base or family.bare[0], form.prefix, form.spread
    elif architecture not in family.bare:
        plan.prefix, plan.spread = row.prefix, row.spread
    if kind == CHOICE:
        plan.choices = classes if isinstance(classes, int) else 2
        classes = None
    there = labels_of(values)
    labels = there
    if isinstance(classes, int) and classes != len(there):
        labels = [f"LABEL_{k}" for k in range(classes)]
    elif classes is not None and not isinstance(classes, int):
        labels = list(classes)
    # Classes without names of their own may be any.
    unnamed = there == [f"LABEL_{k}" for k in range(len(there))]
    renewed = len(labels) != len(there) or (labels != there and not unnamed)
    plan.changes = architecture != found or renewed
    if plan.changes or labels != there:
        plan.values = _changed(values, architecture, kind, labels if labels != there else None)
    if names is not None:
        _rename(plan, row, names, architecture == found, renewed)
    return plan


def _class_for(head: str, found: str, row: Heads, family: Family) -> str:
    """Return the class for ``head`` in place of ``found``. Errors: `ArgumentError` without one."""
    if head == EMBEDDING and row.embeds:
        return row.encoder or (found if found in family.bare else family.bare[0])
    known = (*family.architectures, *(form.architecture for form in row.heads.values()))
    fitting = [name for name in known if kind_of(name) == head]
    if not fitting:
        kinds = dict.fromkeys(kind for name in known if (kind := kind_of(name)))
        raise ArgumentError(
            "pretrained.load, head",
            expected=f"a head of this family: {one_of([*kinds, *[EMBEDDING] * row.embeds], 8)}",
            received=brief(head),
            advice="transformers has no such class; add layers behind net.upto",
        )
    return fitting[0]


def _expect_classes(classes: Any, kind: str | None, architecture: str) -> None:
    """Errors: `ArgumentError` unless ``classes`` is a number or distinct names, for such a head."""
    where = "pretrained.load, classes"
    if kind not in OF_CLASSES:
        raise ArgumentError(
            where,
            expected=f"head={one_of(OF_CLASSES, 4)} as well",
            received=f"a {architecture}",
            advice="remove classes, or pass head",
        )
    several = isinstance(classes, (list, tuple)) and kind != CHOICE
    if several and classes and all(isinstance(name, str) for name in classes):
        if len(set(classes)) == len(classes):
            return
    elif not several and is_int(classes, 1):
        return
    raise ArgumentError(
        where,
        expected="a number of 1 or more" + ("" if kind == CHOICE else ", or distinct names"),
        received=brief(classes)[:80],
        advice="pass classes=3, or the names of the classes",
    )


def labels_of(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the classes in a config, in order."""
    labels, count = values.get("id2label"), values.get("num_labels")
    if isinstance(labels, Mapping):
        return [str(labels.get(str(k), labels.get(k, f"LABEL_{k}"))) for k in range(len(labels))]
    return [f"LABEL_{k}" for k in range(count if is_int(count, 1) else 2)]


def _changed(
    values: Mapping[str, Any], architecture: str, kind: str | None, labels: list[str] | None
) -> dict[str, Any]:
    """Return the config for another class, and new ``labels`` of the classes."""
    made = {**values, "architectures": [architecture]}
    if kind in (QUESTION, CHOICE) or labels is not None:
        for key in ("id2label", "label2id", "num_labels", "problem_type"):
            made.pop(key, None)
    if labels is not None:
        made["id2label"] = {str(k): name for k, name in enumerate(labels)}
        made["label2id"] = {name: k for k, name in enumerate(labels)}
    return made


def _rename(plan: HeadPlan, row: Heads, names: Mapping[str, str], own: bool, renewed: bool) -> None:
    """Set the names for the class of ``plan``: the model's under its prefix, the head's if own."""
    if own and not renewed:
        return
    prefixes = {row.prefix, *(head.prefix for head in row.heads.values())} - {""}
    there = next((p for p in prefixes if any(name.startswith(p) for name in names)), "")
    inner = {
        name.removeprefix(there): name
        for name in names
        if (name.startswith(there) if there else not OF_HEADS.match(name))
    }
    heads = [name for name in names if name not in inner.values()]
    if row.encoder and plan.base == row.encoder:
        inner = {name: old for name, old in inner.items() if not name.startswith("decoder.")}
    kept = {plan.prefix + name: names[old] for name, old in inner.items()}
    if own:
        out = plan.form.out if plan.form is not None else "classifier"
        gone: tuple[str, ...] = (f"{out}.weight", f"{out}.bias")
        if plan.form is None:
            gone = tuple(name for name in heads if "classifier" in name)
        kept |= {name: names[name] for name in heads if name not in gone}
    plan.names = kept


# -- layers -----------------------------------------------------------------------------------


def drawn(plan: HeadPlan, form: HeadForm, d: ModelDrawing, x: Any) -> Symbol | list[Symbol]:
    """Return the outputs of the head ``form`` behind ``x``, the last hidden states.

    The model's arrays get the prefix that they have in files of the class.
    """
    d.under(form.prefix)
    if plan.kind == TOKEN:
        y = _scores(d, form, x, "logits", d.expect_classes())
        d.loss, d.metric = SoftmaxCrossEntropy(ignore_index=-100), Accuracy(ignore_index=-100)
        return y
    if plan.kind == QUESTION:
        return _ends(d, form, x)
    x = _read(d, form, x)
    if plan.kind == SEQUENCE:
        return _scores(d, form, x, "logits", d.expect_classes())
    first = _scores(d, form, x, "scores", 1)
    d.loss, d.metric = SoftmaxCrossEntropy(), Accuracy()
    others = [_of_choice(d, first, k) for k in range(1, plan.choices)]
    scores: Symbol = Concat("logits", axis=-1)(first, *others)
    return scores


def _scores(d: ModelDrawing, form: HeadForm, x: Symbol, name: str, classes: int) -> Symbol:
    """Add the layers of the classes."""
    c = d.config
    c.only(**form.only)
    rate = _rate(c, form.dropouts, form.rate)
    if form.dense:
        x = d.dropout(x, "pooler_drop", _rate(c, form.before, rate) if form.before else 0.0)
        x = d.dense(x, "pooler", x.shape[-1], form.dense, form.dense_bias)
        x = d.activation(x, "pooler_act", form.activation)
    if form.norm:
        x = d.put(
            LayerNorm("pooler_norm", epsilon=c.number("norm_eps", 1e-5), center=False),
            x,
            gamma=ArrayPlace(f"{form.norm}.weight"),
        )
    x = d.dropout(x, "classes_drop", rate)
    return d.dense(x, name, classes, form.out, bias=form.bias)


def _rate(c: Config, keys: tuple[str, ...], usual: float) -> float:
    """Return the dropout of the first of ``keys`` in the config."""
    for key in reversed(keys):
        usual = c.share(key, usual)
    return usual


def _ends(d: ModelDrawing, form: HeadForm, x: Symbol) -> list[Symbol]:
    """Add the scores of each step as the start and the end of an answer."""
    both = _scores(d, form, x, "qa_outputs", 2)
    names: tuple[str, ...] = ("start_logits", "end_logits")
    outputs: list[Symbol] = [
        Index(name, [(None, None, None), k])(both) for k, name in enumerate(names)
    ]
    losses = {name: SoftmaxCrossEntropy(ignore_index=-100) for name in names}
    d.loss = MultiLoss(losses, weights=dict.fromkeys(names, 0.5))
    return outputs


def _of_choice(d: ModelDrawing, first: Symbol, k: int) -> Symbol:
    """Return the score of choice ``k`` by the layers of ``first``, which is of choice 0."""
    made: dict[int, Any] = {
        d.given[str(whole.call.layer.name)].call.born: whole[:, k] for whole in d.inputs
    }
    for call in calls_between(None, [first]):
        if call.born not in made:
            inputs = tuple(_output(made[each.call.born], each.index) for each in call.inputs)
            made[call.born] = apply(call.layer, inputs, inner=True) if inputs else None
    score: Symbol = made[first.call.born]
    return score


def _output(made: Any, index: int) -> Symbol:
    y: Symbol = made[index] if isinstance(made, tuple) else made
    return y


def _read(d: ModelDrawing, form: HeadForm, x: Symbol) -> Symbol:
    """Return the step that the head reads, (N, E)."""
    ids, mask = d.given["input_ids"], d.given.get("attention_mask")
    reads = form.reads
    if reads == "classifier_pooling":
        reads = d.config.choice(reads, {"cls": "first", "mean": "mean"}, "cls")
    if reads == "first":
        return x[:, 0]
    if reads == "mean":
        return SentencePooling("mean", unit=False).draw(x, mask)
    if reads == "end":
        end = d.config.count("eos_token_id", least=0)
        return last_step(x, functional.cast(functional.equal(ids, end), "int64"), 0)
    padding = d.config.values.get("pad_token_id")
    if is_int(padding, 0):
        return last_step(x, ids, padding)
    # As in transformers the row ends with a token, unless there is a mask.
    return x[:, -1] if mask is None else last_step(x, mask, 0)
