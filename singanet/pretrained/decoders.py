"""Published decoders: causal language models, drawn from their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from singanet.layers import (
    Alibi,
    Dummy,
    Embedding,
    GatedUnit,
    MixtureOfExperts,
    MultiHeadAttention,
    Multiply,
    PositionEmbedding,
    QueryKeyNorm,
    RotaryEmbedding,
    Scale,
)
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol
from singanet.pretrained.config import Config
from singanet.pretrained.drawing import ACTIVATIONS, ArrayPlace, Family, ModelDrawing


@dataclass(frozen=True, kw_only=True)
class Modules:
    """The names of a decoder's modules in the files; "" for a module that it does not have.

    The defaults are Llama's. ``norms`` are the norms before and after attention, and before and
    after the unit. ``joined`` has queries, keys and values in one array, ``joined_gate`` the gate
    and the up projection. A unit without a gate has two projections. ``narrow`` and ``widen`` are
    projections between the table's width and the width of the blocks.
    """

    base: str = "model."
    table: str = "embed_tokens"
    widen: str = ""
    positions: str = ""
    table_norm: str = ""
    block: str = "layers.{}"
    norms: tuple[str, str, str, str] = ("input_layernorm", "", "post_attention_layernorm", "")
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    joined: str = ""
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    output: str = "self_attn.o_proj"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    joined_gate: str = ""
    down: str = "mlp.down_proj"
    norm: str = "norm"
    narrow: str = ""
    head: str = "lm_head"


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The mixtures of experts of a decoder, and the names of their modules in a block.

    ``blocks`` is whether each block has one. ``shared`` is the number of hidden features of a unit
    that computes every step in addition, or 0; its output is multiplied by a gate of one number.
    ``stacked``: one array has the gate and the up projections of all experts, one the others.
    """

    count: int
    top_k: int
    hidden: int
    normalized: bool
    blocks: Sequence[bool]
    shared: int = 0
    stacked: bool = False
    router: str = "mlp.gate"
    gate: str = "mlp.experts.{}.gate_proj"
    up: str = "mlp.experts.{}.up_proj"
    down: str = "mlp.experts.{}.down_proj"


@dataclass(kw_only=True)
class DecoderSettings:
    """The settings of a causal transformer. `read_sizes` reads those that all families share.

    ``normalise`` makes a norm of a name. ``turns`` and ``windows`` have the rotary positions and
    the sliding window of each block, or None.

    ``parallel``: attention and unit read the block's input, and both are added to it; the unit
    reads the output of attention's norm, unless it has a norm of its own. ``after_add``: the norms
    after attention and unit follow the residual sums. An array of queries, keys and values has
    ``groups`` equal groups, each with its part of the three in the ``order``. ``transposed``:
    matrices are (out, in) in the files. ``first_position`` is the row of the first step in the
    table of learned positions. ``padding`` is the default of ``pad_token_id``, ``pads`` whether
    that row gets no gradient.
    """

    modules: Modules
    width: int
    depth: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    vocabulary: int
    longest: int
    activation: str
    tied: bool
    of_weights: float
    normalise: Callable[[str], Layer]
    turns: Sequence[RotaryEmbedding | None]
    windows: Sequence[int | None]
    biases: bool | Sequence[str] = False
    hidden_bias: bool = False
    head_bias: bool = False
    parallel: bool = False
    after_add: bool = False
    groups: int = 1
    order: tuple[str, str, str] = ("query", "key", "value")
    transposed: bool = True
    norm: QueryKeyNorm | None = None
    relative: Alibi | None = None
    experts: Experts | None = None
    dropout: float = 0.0
    table_dropout: float = 0.0
    table_width: int | None = None
    first_position: int = 0
    padding: int | None = None
    pads: bool = True
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    scale: float | None = None
    softcap: float | None = None
    head_scale: float = 1.0
    final_softcap: float | None = None


_KEYS = {
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "hidden": "intermediate_size",
    "longest": "max_position_embeddings",
    "activation": "hidden_act",
    "of_weights": "attention_dropout",
}
"""The keys of configs by settings; a family may have others, or "" for a constant."""


def read_sizes(
    c: Config,
    modules: Modules,
    normalise: Callable[[str], Layer],
    keys: Mapping[str, str] | None = None,
    *,
    kv_heads: int | None = None,
    head_size: int | None = None,
    ratio: int | None = None,
    longest: int = 2048,
    activation: str = "silu",
    of_weights: float = 0.0,
    tied: bool = False,
) -> DecoderSettings:
    """Return the settings that all families share; positions are not set.

    ``keys`` are the family's names of keys, the other arguments its defaults. ``ratio`` is the
    default of the hidden features relative to the width; None if the config must have them.
    """
    of = {**_KEYS, **(keys or {})}
    width, heads = c.count(of["width"]), c.count(of["heads"])
    depth = c.blocks(of["depth"])
    usual, size = kv_heads or heads, head_size or max(width // heads, 1)
    inner = [] if ratio is None else [ratio * width]
    return DecoderSettings(
        modules=modules,
        width=width,
        depth=depth,
        heads=heads,
        kv_heads=c.count(of["kv_heads"], usual) if of["kv_heads"] else usual,
        head_size=c.count(of["head_size"], size) if of["head_size"] else size,
        hidden=c.count(of["hidden"], *inner) if of["hidden"] else inner[0],
        vocabulary=c.count("vocab_size"),
        longest=c.count(of["longest"], longest),
        activation=_chosen(c, of["activation"], activation),
        tied=c.flag("tie_word_embeddings", tied),
        of_weights=c.share(of["of_weights"], of_weights) if of["of_weights"] else of_weights,
        normalise=normalise,
        turns=[None] * depth,
        windows=[None] * depth,
    )


def _chosen(c: Config, key: str, usual: str) -> str:
    """Return the activation in the config, or the constant ``usual`` if the family has no key."""
    return c.choice(key, ACTIVATIONS, usual) if key else ACTIVATIONS[usual]


def decoder_family(
    read: Callable[[Config], DecoderSettings],
    name: str,
    *,
    causal: str = "ForCausalLM",
    bare: str = "Model",
    others: tuple[tuple[str, str], ...] = (),
    older: tuple[str, ...] = (),
) -> Family:
    """Return the family of the classes ``name`` + ``causal`` and ``name`` + ``bare``.

    ``read`` reads its configs; ``others`` are patterns of other array names, and ``older`` further
    names of the first class.
    """
    bare = name + bare
    return Family(
        partial(draw, read), (name + causal, bare, *older), bare=(bare,), others=others, idle=_IDLE
    )


_IDLE = (r".*rotary_emb\.inv_freq", r".*\.(attn|attention)\.((masked_)?bias|causal_mask)")
"""Buffers of angles and of causal masks, which older versions of transformers wrote."""


def draw(read: Callable[[Config], DecoderSettings], d: ModelDrawing) -> Symbol:
    """Build the net of the settings that ``read`` returns: ``logits``, or ``last_hidden_state``."""
    m = read(d.config)
    names = m.modules
    if m.experts is not None and d.names is not None:
        # Before any layer is made: a config alone may have any number.
        needed = (1 if m.experts.stacked else 3 * m.experts.count) * sum(m.experts.blocks)
        if needed > len(d.names):
            raise d.config.refused("the number of experts", f"{len(d.names)} arrays", needed)
    # With dynamic scaling a config contains the original length alone.
    d.most_steps = max(m.longest, *(turn.reach for turn in m.turns if turn is not None), 0)
    # Learned positions count the steps of a row, and rows of OPT those of a mask.
    others = ["attention_mask"] * (not m.first_position) + ["segments"] * (not names.positions)
    inputs = d.ids(("input_ids",), others=others)
    base = d.prefix(names.base)
    padding = d.padding(m.vocabulary, m.padding) if m.pads else None
    headed = m.tied and not d.is_bare
    called = names.table.rpartition(".")[2]
    table = Embedding(
        called, m.vocabulary, m.table_width or m.width, padding_index=padding, sparse=headed
    )
    x = d.embedding(inputs["input_ids"], table, base + names.table)
    if m.embedding_scale != 1.0:
        x = Scale("embed_scale", m.embedding_scale)(x)
    if names.widen:
        x = d.dense(x, "widen", m.width, base + names.widen, bias=False)
    if names.positions:
        rows = PositionEmbedding(
            names.positions.rpartition(".")[2], m.longest, first=m.first_position
        )
        x = d.put(rows, x, weight=ArrayPlace(f"{base}{names.positions}.weight"))
    x = d.dropout(x, "drop", m.table_dropout)
    if names.table_norm:
        x = _norm(d, m, x, "table_norm", base + names.table_norm)
    order = ("segments", "attention_mask")
    masks: dict[str, Symbol] = {name: inputs[name] for name in order if name in inputs}
    for k in range(m.depth):
        x = _Block(d, m, k, base + names.block.format(k)).draw(x, masks)
    ends = [name for name in (names.norm, names.narrow) if name]
    last = "last_hidden_state" if d.is_bare else ""
    if names.norm:
        x = _norm(d, m, x, last if len(ends) == 1 and last else "norm", base + names.norm)
    if names.narrow:
        x = d.dense(x, last or "narrow", table.output_dim, base + names.narrow, bias=False)
    if d.is_bare:
        return x if ends else Dummy(last)(x)
    if m.head_scale != 1.0:
        x = Scale("head_scale", m.head_scale)(x)
    d.expect_words()
    tied = table.params["weight"] if headed else None
    bias = f"{names.head}.bias" if m.head_bias else ""
    return d.head(x, m.vocabulary, f"{names.head}.weight", tied, bias, m.final_softcap)


class _Block:
    """A block: attention and a unit, each with a residual connection."""

    def __init__(self, d: ModelDrawing, m: DecoderSettings, k: int, theirs: str) -> None:
        self.d, self.m, self.k = d, m, k
        self.name, self.theirs = f"layers/{k}", theirs

    def draw(self, x: Symbol, masks: Mapping[str, Symbol]) -> Symbol:
        """Add the block to the residual stream ``x``; ``masks`` are the masks of attention."""
        m, (before, after, before_unit, after_unit) = self.m, self.m.modules.norms
        y = inner = self._norm(x, "attention_norm", before)
        y = self._branch(self._attention(y, masks), "attention", after)
        if not m.parallel:
            x = inner = self._sum("attention", after, x, y)
        if before_unit:
            inner = self._norm(x, "unit_norm", before_unit)
        unit = self._branch(self._unit(inner), "unit", after_unit)
        return self._sum("unit", after_unit, x, *([y] if m.parallel else []), unit)

    def _branch(self, y: Symbol, part: str, norm: str) -> Symbol:
        """Add the layers between a part of the block and the residual sum."""
        if not self.m.after_add:
            y = self._norm(y, f"{part}_post_norm", norm)
        y = self.d.dropout(y, f"{self.name}/{part}_drop", self.m.dropout)
        if self.m.residual_scale == 1.0:
            return y
        return Scale(f"{self.name}/{part}_scale", self.m.residual_scale)(y)

    def _sum(self, part: str, norm: str, *parts: Symbol) -> Symbol:
        """Add the residual sum of ``parts``."""
        x = self.d.add(f"{self.name}/{part}_add", *parts)
        return self._norm(x, f"{part}_post_norm", norm) if self.m.after_add else x

    def _norm(self, x: Symbol, name: str, theirs: str) -> Symbol:
        if not theirs:
            return x
        return _norm(self.d, self.m, x, f"{self.name}/{name}", f"{self.theirs}.{theirs}")

    def _attention(self, x: Symbol, masks: Mapping[str, Symbol]) -> Symbol:
        m, names = self.m, self.m.modules
        layer = MultiHeadAttention(
            f"{self.name}/attention",
            m.heads,
            m.head_size,
            dropout=m.of_weights,
            use_bias=m.biases,
            causal=True,
            num_kv_heads=m.kv_heads,
            mask="boolean" if "attention_mask" in masks else None,
            segments="segments" in masks,
            rotary=m.turns[self.k],
            norm=m.norm,
            scale=m.scale,
            softcap=m.softcap,
            window=m.windows[self.k],
            relative=m.relative,
        )
        places = self._places("output", names.output)
        for part, module in (("query", names.query), ("key", names.key), ("value", names.value)):
            if names.joined:
                places |= self._places(part, names.joined, m.order.index(part), m.groups)
            else:
                places |= self._places(part, module)
        for part, module in (("query", names.query_norm), ("key", names.key_norm)):
            places[f"{part}_gamma"] = ArrayPlace(f"{self.theirs}.{module}.weight")
        return self.d.put(layer, [x, *masks.values()] if masks else x, **places)

    def _unit(self, x: Symbol) -> Symbol:
        d, m, names = self.d, self.m, self.m.modules
        if m.experts is not None and m.experts.blocks[self.k]:
            return self._mixture(x, m.experts)
        if not names.gate:
            dense = partial(d.dense, bias=m.hidden_bias, transposed=m.transposed)
            y = dense(x, f"{self.name}/up", m.hidden, f"{self.theirs}.{names.up}")
            y = d.activation(y, f"{self.name}/act", m.activation)
            return dense(y, f"{self.name}/down", m.width, f"{self.theirs}.{names.down}")
        return self._gated(x, "unit", m.hidden, names)

    def _gated(self, x: Symbol, name: str, hidden: int, names: Modules) -> Symbol:
        m = self.m
        layer = GatedUnit(
            f"{self.name}/{name}", hidden, m.width, mode=m.activation, use_bias=m.hidden_bias
        )
        places = self._places("down", names.down)
        for order, (part, module) in enumerate((("gate", names.gate), ("up", names.up))):
            if names.joined_gate:
                places |= self._places(part, names.joined_gate, order)
            else:
                places |= self._places(part, module)
        return self.d.put(layer, x, **places)

    def _mixture(self, x: Symbol, experts: Experts) -> Symbol:
        """Add a mixture of experts, and the unit that computes every step, if there is one."""
        layer = MixtureOfExperts(
            f"{self.name}/experts",
            experts.hidden,
            experts.count,
            experts.top_k,
            mode=self.m.activation,
            normalized=experts.normalized,
        )
        places = self._places("router", experts.router)
        for k in range(experts.count):
            places |= self._expert(experts, k)
        y = self.d.put(layer, x, **places)
        if not experts.shared:
            return y
        own = "mlp.shared_expert"
        modules = replace(
            self.m.modules, gate=f"{own}.gate_proj", up=f"{own}.up_proj", down=f"{own}.down_proj"
        )
        shared = self._gated(x, "shared", experts.shared, modules)
        theirs = f"{self.theirs}.mlp.shared_expert_gate"
        gate = self.d.dense(x, f"{self.name}/shared_gate", 1, theirs, bias=False)
        gate = self.d.activation(gate, f"{self.name}/shared_gate_act", "sigmoid")
        shared = Multiply(f"{self.name}/shared_product")(shared, gate)
        return self.d.add(f"{self.name}/experts_add", y, shared)

    def _expert(self, experts: Experts, k: int) -> dict[str, ArrayPlace]:
        """Return the places of the weights of expert ``k``."""
        places = {}
        for part, order in (("gate", 2 * k), ("up", 2 * k + 1), ("down", k)):
            module = getattr(experts, part).format(k)
            name = f"{self.theirs}.{module}.weight"
            width, hidden = self.m.width, experts.hidden
            whole = (width, hidden) if part == "down" else (2 * hidden, width)
            places[f"{part}_{k}_weight"] = (
                ArrayPlace(name, True, order, whole=(experts.count, *whole))
                if experts.stacked
                else ArrayPlace(name, True)
            )
        return places

    def _places(
        self, part: str, module: str, order: int = 0, groups: int = 1
    ) -> dict[str, ArrayPlace]:
        """Return the places of the weight and the bias of a projection."""
        own, turned = f"{self.theirs}.{module}", self.m.transposed
        axis = 0 if turned else 1
        return {
            f"{part}_weight": ArrayPlace(f"{own}.weight", turned, order, axis, groups=groups),
            f"{part}_bias": ArrayPlace(f"{own}.bias", order=order, groups=groups),
        }


def _norm(d: ModelDrawing, m: DecoderSettings, x: Symbol, name: str, theirs: str) -> Symbol:
    gamma, beta = ArrayPlace(f"{theirs}.weight"), ArrayPlace(f"{theirs}.bias")
    return d.put(m.normalise(name), x, gamma=gamma, beta=beta)
