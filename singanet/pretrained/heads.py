"""Heads of published models: which a family has, their arrays, and their layers.

A head maps the last hidden states of a model without one to outputs with the names of transformers.
The heads of a family are one row of `HEADS`: its class names, the prefix of the model's arrays, and
the modules of the head. A new decoder needs one line, ``"name": _decoder("ClassName")``; a new
encoder names the kind of its classifier: ``"name": _encoder("ClassName", "prefix.", _POOLED)``. A
language model and a classifier of images need a prefix alone, since the family draws them and
`Family` lists their classes; an embedding is drawn for each family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from singanet.pretrained.config import Config
from singanet.pretrained.drawing import Family

SEQUENCE, TOKEN = "sequence-classification", "token-classification"
QUESTION, CHOICE = "question-answering", "multiple-choice"
EMBEDDING, WORDS, IMAGE = "embedding", "language-model", "image-classification"

_SUFFIXES = {
    WORDS: ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "MTModel"),
    IMAGE: ("ForImageClassification", "WithTeacher"),
    SEQUENCE: ("ForSequenceClassification",),
    TOKEN: ("ForTokenClassification",),
    QUESTION: ("ForQuestionAnswering",),
    CHOICE: ("ForMultipleChoice",),
}
KINDS = (SEQUENCE, TOKEN, QUESTION, CHOICE, EMBEDDING, WORDS, IMAGE)
OF_CLASSES = (SEQUENCE, TOKEN, CHOICE, IMAGE)
"""The heads for which a number of classes, or of choices, can be chosen."""

Spread: TypeAlias = Callable[[Config, str], float]
"""A function of a config and the name of an array that returns the deviation of new weights."""


def usual_spread(c: Config, name: str) -> float:
    """Return the standard deviation of new weights in `PreTrainedModel` of transformers."""
    keys = ("initializer_range", "init_std", "initializer_factor")
    key = next((key for key in keys if c.values.get(key)), "")
    return c.number(key, 0.02)


def _spread_of_t5(c: Config, name: str) -> float:
    return c.number("initializer_factor", 1.0) * c.count("d_model", 512) ** -0.5


def _spread_of_images(c: Config, name: str) -> float:
    vision = c.values.get("vision_config")
    width = Config(vision if isinstance(vision, Mapping) else {}, "config").count(
        "hidden_size", 768
    )
    return c.number("initializer_factor", 1.0) * width**-0.5


def _spread_of_modernbert(c: Config, name: str) -> float:
    if name.startswith("classifier"):
        return c.count("hidden_size", 768) ** -0.5
    depth = c.count("num_hidden_layers", 22)
    return c.number("initializer_range", 0.02) / (2.0 * depth) ** 0.5


@dataclass(frozen=True)
class HeadForm:
    """The class and the layers of a head.

    ``prefix`` is the prefix of the model's arrays in files of the class. The head ``reads`` the
    "first" step, the "last" that is no padding, the last "end" of a text, "each" step, or what the
    config has as "classifier_pooling". An optional layer ``dense`` with an ``activation`` and
    perhaps a ``norm`` precedes the layer ``out``. ``dropouts`` are keys of the config, the first of
    which that is set is the dropout before ``out``; ``rate`` is the dropout without any, and
    ``before`` are keys for a dropout before ``dense``. ``only`` are the supported values of other
    keys. ``base`` is the class of the model without a head, "" for the family's first, and
    ``spread`` gives the standard deviation of new weights.
    """

    architecture: str
    prefix: str
    reads: str = "each"
    dense: str = ""
    dense_bias: bool = True
    activation: str = "tanh"
    norm: str = ""
    out: str = "classifier"
    bias: bool = True
    before: tuple[str, ...] = ()
    dropouts: tuple[str, ...] = ()
    rate: float = 0.0
    only: Mapping[str, Any] = field(default_factory=dict)
    base: str = ""
    spread: Spread = usual_spread


@dataclass(frozen=True)
class Heads:
    """The heads of a family, and the ``prefix`` of the model's arrays in its language model.

    ``encoder`` is the class of the encoder alone, whose files omit the arrays of ``decoder.``;
    ``embeds`` is False for an encoder-decoder without such a class. ``spread`` is of heads that the
    family draws.
    """

    prefix: str
    heads: Mapping[str, HeadForm] = field(default_factory=dict)
    encoder: str = ""
    embeds: bool = True
    spread: Spread = usual_spread


_HIDDEN = ("classifier_dropout", "hidden_dropout_prob")
_POOLED: Mapping[str, Any] = {"reads": "first", "dense": "{}pooler.dense", "dropouts": _HIDDEN}
"""BERT's classifier, behind the pooler of the model."""
_OWN_DENSE: Mapping[str, Any] = {
    "reads": "first", "dense": "classifier.dense", "out": "classifier.out_proj",
    "before": _HIDDEN, "dropouts": _HIDDEN,
}  # fmt: skip
"""RoBERTa's classifier, with a dense layer of its own."""
_PLAIN: Mapping[str, Any] = {"dropouts": ("hidden_dropout_prob",)}
_OF_CHOICES: Mapping[str, Any] = {**_POOLED, **_PLAIN}


def _encoder(
    name: str,
    prefix: str,
    sequence: Mapping[str, Any],
    choice: Mapping[str, Any] | None = None,
    token: Mapping[str, Any] | None = None,
    question: Mapping[str, Any] | None = None,
) -> Heads:
    """Return the heads of a BERT-like encoder; those that are None are as in RoBERTa."""
    forms = {
        SEQUENCE: sequence,
        TOKEN: {"dropouts": _HIDDEN} if token is None else token,
        QUESTION: {"out": "qa_outputs", "rate": 0.0} if question is None else question,
        CHOICE: _OF_CHOICES if choice is None else choice,
    }
    found = {}
    for kind, form in forms.items():
        whole = {"rate": 0.1, **form}
        whole["dense"] = whole.get("dense", "").format(prefix)
        found[kind] = HeadForm(f"{name}{_SUFFIXES[kind][0]}", prefix, **whole)
    return Heads(prefix, found)


_OF_TOKENS = ("classifier_dropout", "hidden_dropout")


def _decoder(
    name: str,
    prefix: str = "model.",
    token: str | None = "score",
    question: str | None = None,
    token_dropouts: tuple[str, ...] = _OF_TOKENS,
) -> Heads:
    """Return the heads of a decoder.

    ``token`` is the module of the classes of tokens, None if transformers has none; ``question`` is
    the prefix of the model's arrays in files for questions.
    """
    sequence = HeadForm(f"{name}ForSequenceClassification", prefix, "last", out="score", bias=False)
    found = {SEQUENCE: sequence}
    if token is not None:
        drops: dict[str, Any] = {"dropouts": token_dropouts, "rate": 0.1}
        found[TOKEN] = HeadForm(f"{name}ForTokenClassification", prefix, out=token, **drops)
    if question is not None:
        found[QUESTION] = HeadForm(f"{name}ForQuestionAnswering", question, out="qa_outputs")
    return Heads(prefix, found)


def _t5(name: str) -> Heads:
    form: dict[str, Any] = {"dropouts": ("classifier_dropout",), "spread": _spread_of_t5}
    inner = "transformer."
    token: dict[str, Any] = {"base": f"{name}EncoderModel", "spread": usual_spread}
    return Heads(
        "",
        {
            SEQUENCE: HeadForm(
                f"{name}ForSequenceClassification", inner, **{**form, **_AT_THE_END}
            ),
            TOKEN: HeadForm(f"{name}ForTokenClassification", inner, **form | token),
            QUESTION: HeadForm(
                f"{name}ForQuestionAnswering", "", out="qa_outputs", spread=_spread_of_t5
            ),
        },
        f"{name}EncoderModel",
    )


def _bart(name: str) -> Heads:
    sequence = HeadForm(
        f"{name}ForSequenceClassification",
        "model.",
        dropouts=("classifier_dropout",),
        **_AT_THE_END,
    )
    question = HeadForm(f"{name}ForQuestionAnswering", "model.", out="qa_outputs")
    return Heads("model.", {SEQUENCE: sequence, QUESTION: question}, embeds=False)


_AT_THE_END: Mapping[str, Any] = {
    "reads": "end", "dense": "classification_head.dense", "out": "classification_head.out_proj",
    "before": ("classifier_dropout",),
}  # fmt: skip
_DISTILBERT: Mapping[str, Any] = {
    "reads": "first", "dense": "pre_classifier", "activation": "relu",
    "dropouts": ("seq_classif_dropout",), "rate": 0.2,
}  # fmt: skip
_ALBERT: Mapping[str, Any] = {
    "reads": "first", "dense": "{}pooler", "dropouts": ("classifier_dropout_prob",),
}  # fmt: skip
_DEBERTA: Mapping[str, Any] = {
    "reads": "first", "dense": "pooler.dense", "activation": "gelu", "before": ("pooler_dropout",),
    "dropouts": ("cls_dropout", "hidden_dropout_prob"), "only": {"pooler_hidden_act": "gelu"},
}  # fmt: skip
_ELECTRA: Mapping[str, Any] = {
    "reads": "first", "dense": "sequence_summary.summary", "activation": "gelu",
    "dropouts": ("summary_last_dropout",),
    "only": {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"},
}  # fmt: skip
_MODERNBERT: Mapping[str, Any] = {
    "dense": "head.dense", "dense_bias": False, "activation": "gelu", "norm": "head.norm",
    "dropouts": ("classifier_dropout",), "rate": 0.0, "spread": _spread_of_modernbert,
    "only": {"classifier_bias": False, "classifier_activation": "gelu", "norm_bias": False},
}  # fmt: skip
_MODERNBERT_POOLED: Mapping[str, Any] = {**_MODERNBERT, "reads": "classifier_pooling"}
_OWN: Mapping[str, Any] = {"token": "classifier", "token_dropouts": ("classifier_dropout",)}
"""Decoders that call the classes of tokens classifier."""

HEADS: Mapping[str, Heads] = {
    "albert": _encoder("Albert", "albert.", _ALBERT, _ALBERT, {"dropouts": _ALBERT["dropouts"]}),
    "bart": _bart("Bart"),
    "beit": Heads("beit."),
    "bert": _encoder("Bert", "bert.", _POOLED, _POOLED),
    "bloom": _decoder("Bloom", "transformer.", question="transformer.", **_OWN),
    "camembert": _encoder("Camembert", "roberta.", _OWN_DENSE),
    "clip": Heads("", embeds=False, spread=_spread_of_images),
    "codegen": Heads("transformer."),
    "convnext": Heads("convnext."),
    "deberta-v2": _encoder(
        "DebertaV2", "deberta.", _DEBERTA, _DEBERTA, _PLAIN
    ),
    "deit": Heads("deit."),
    "dinov2": Heads("dinov2."),
    "distilbert": _encoder(
        "DistilBert", "distilbert.", _DISTILBERT, _DISTILBERT, {"dropouts": ("dropout",)},
        {"out": "qa_outputs", "dropouts": ("qa_dropout",)},
    ),
    "electra": _encoder("Electra", "electra.", {**_OWN_DENSE, "activation": "gelu"}, _ELECTRA),
    "falcon": _decoder("Falcon", "transformer.", question="transformer.", **_OWN),
    "gemma": _decoder("Gemma"),
    "gemma2": _decoder("Gemma2"),
    "gemma3_text": _decoder("Gemma3Text", token=None),
    "gpt2": _decoder("GPT2", "transformer.", "classifier", "transformer."),
    "gpt_neo": _decoder("GPTNeo", "transformer.", question="transformer.", **_OWN),
    "gpt_neox": _decoder("GPTNeoX", "gpt_neox.", question="gpt_neox.", **_OWN),
    "gptj": _decoder("GPTJ", "transformer.", token=None, question="transformer."),
    "granite": Heads("model."),
    "llama": _decoder("Llama", question="transformer."),
    "marian": Heads("model.", embeds=False),
    "mbart": _bart("MBart"),
    "mistral": _decoder("Mistral", question="model."),
    "mixtral": _decoder("Mixtral", question="model."),
    "modernbert": _encoder(
        "ModernBert", "model.", _MODERNBERT_POOLED, _MODERNBERT_POOLED, _MODERNBERT, _MODERNBERT
    ),
    "mpnet": _encoder(
        "MPNet", "mpnet.", {**_OWN_DENSE, **_PLAIN, "before": _PLAIN["dropouts"]}, None, _PLAIN
    ),
    "mpt": _decoder("Mpt", "transformer.", question="transformer.", **_OWN),
    "mt5": _t5("MT5"),
    "nemotron": _decoder("Nemotron", question="transformer."),
    "olmo": _decoder("Olmo", token=None),
    "olmo2": _decoder("Olmo2", token=None),
    "olmo3": _decoder("Olmo3", token=None),
    "opt": _decoder("OPT", token=None, question="model."),
    "pegasus": Heads("model.", embeds=False),
    "phi": _decoder("Phi"),
    "phi3": _decoder("Phi3"),
    "phimoe": _decoder("Phimoe", token=None),
    "qwen2": _decoder("Qwen2", question="transformer."),
    "qwen2_moe": _decoder("Qwen2Moe", question="model."),
    "qwen3": _decoder("Qwen3", question="transformer."),
    "qwen3_moe": _decoder("Qwen3Moe", question="transformer."),
    "resnet": Heads("resnet."),
    "roberta": _encoder("Roberta", "roberta.", _OWN_DENSE),
    "siglip": Heads("", embeds=False, spread=_spread_of_images),
    "smollm3": _decoder("SmolLM3", question="transformer."),
    "stablelm": _decoder("StableLm"),
    "starcoder2": _decoder("Starcoder2"),
    "swin": Heads("swin."),
    "t5": _t5("T5"),
    "vit": Heads("vit."),
    "whisper": Heads("model.", embeds=False),
    "xlm-roberta": _encoder("XLMRoberta", "roberta.", _OWN_DENSE),
}  # fmt: skip
"""The heads of each family, by ``model_type``."""

OF_HEADS = re.compile(r"(lm_head|qa_outputs|score|classifier|classification_head|cls)\.")
"""Names of arrays of heads in files whose other names have no prefix."""


def classes_of(model_type: object, family: Family) -> tuple[str, ...]:
    """Return the supported classes of transformers for a ``model_type``."""
    row = HEADS.get(str(model_type), Heads(""))
    added = [head.architecture for head in row.heads.values()]
    return (*family.architectures, *(name for name in added if name not in family.architectures))


def kind_of(architecture: str) -> str | None:
    """Return the kind of head of a class of transformers; None without one."""
    for kind, suffixes in _SUFFIXES.items():
        if architecture.endswith(suffixes):
            return kind
    return None
