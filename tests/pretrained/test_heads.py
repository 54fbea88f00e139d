"""Every head of every family against transformers: outputs, gradients, and the way back."""

import warnings

import numpy as np
import pytest

from singanet import pretrained
from singanet.checkpoint import write_folder
from singanet.errors import ArgumentError, StateMismatchError
from singanet.optimizer import SGD
from singanet.pretrained import heads
from singanet.pretrained.families import FAMILIES
from tests.pretrained.comparing import named, named_gradients
from tests.pretrained.peers import (
    MODELS,
    batch,
    in_files,
    make,
    queries_for,
    torch,
    transformers,
    write,
)
from tests.pretrained.test_families import expect_same_bits

AUTO = {
    heads.SEQUENCE: "SequenceClassification", heads.TOKEN: "TokenClassification",
    heads.QUESTION: "QuestionAnswering", heads.CHOICE: "MultipleChoice",
    heads.IMAGE: "ImageClassification",
}  # fmt: skip
DROPOUTS = ("qa_dropout", "classifier_dropout_prob", "summary_last_dropout", "cls_dropout")
LIVELY = {"initializer_range": 0.3}
"""Larger new heads, whose outputs differ from 0."""


def kind_of(name):
    """The model_type of the model of that name."""
    return getattr(transformers, MODELS[name][0]).config_class.model_type


FIRST = {kind_of(name): name for name in reversed(MODELS)}
"""A model of each family."""
CASES = [
    (kind, head) for kind in FAMILIES if kind in FIRST and kind in heads.HEADS
    for head in heads.HEADS[kind].heads
]  # fmt: skip


def embeds(kind):
    return kind not in heads.HEADS or heads.HEADS[kind].embeds


def has_auto(kind):
    return len(FAMILIES[kind].bare) == 1 and kind != "siglip_text_model"


def settings_of(kind):
    """The settings of a model of the family, with a token for padding."""
    return {"pad_token_id": 0} | MODELS[FIRST[kind]][1]


def made(kind, head, labels=3):
    """A random model of transformers with the head, lively in all its parameters."""
    known = getattr(transformers, heads.HEADS[kind].heads[head].architecture)
    usual = known.config_class()
    still = {name: 0.0 for name in DROPOUTS if hasattr(usual, name)} | {"classifier_dropout": 0.0}
    count = {} if head in (heads.QUESTION, heads.CHOICE) else {"num_labels": labels}
    torch.manual_seed(0)
    model = known(known.config_class(**settings_of(kind) | still | count)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model


def fed(net, head):
    """A batch of the net's inputs; the second text is padded."""
    if head != heads.CHOICE:
        x = batch(net)
        padding = net.config.get("pad_token_id")
        if padding is not None and "attention_mask" not in x and "input_ids" in x:
            x["input_ids"] = np.where(x["input_ids"] == padding, 5, x["input_ids"])
            x["input_ids"][1, -3:] = padding
        return x
    several = [batch(net, seed) for seed in range(3)]
    return {name: np.stack([each[name] for each in several], axis=1) for name in several[0]}


def outputs_of(model, x):
    """What transformers gives, by the names of the outputs."""
    out = model(**{name: torch.from_numpy(array) for name, array in x.items()})
    names = ("start_logits", "end_logits") if hasattr(out, "start_logits") else ("logits",)
    return {name: getattr(out, name) for name in names}


def by_name(y):
    return y if isinstance(y, dict) else {"logits": y}


def there(x, name, y):
    """1 for outputs that count: the others are of padding."""
    mask = x.get("attention_mask")
    if mask is None or mask.ndim != 2 or y.shape[:2] != mask.shape or name == "x":
        return np.float32(1)
    return mask.reshape(mask.shape + (1,) * (y.ndim - 2)).astype(np.float32)


@pytest.mark.few(6, full=40)
@pytest.mark.parametrize(("kind", "head"), CASES)
def test_outputs_and_gradients_are_those_of_transformers(kind, head, tmp_path):
    model = made(kind, head)
    net = pretrained.load(write(model, tmp_path / "theirs"), **choices(head))
    assert (net.head, net.loss is not None) == (head, True)
    x = fed(net, head)
    y, wanted = by_name(net.forward(True, x)), outputs_of(model, x)
    assert y.keys() == wanted.keys()
    rng, dy, total = np.random.default_rng(1), {}, 0.0
    for name, ours in y.items():
        peer, count = wanted[name].detach().numpy(), there(x, name, ours)
        assert abs((ours - peer) * count).max() <= 1e-5 * abs(peer).max()
        dy[name] = rng.standard_normal(ours.shape, np.float32) * count
        total = total + (wanted[name] * torch.from_numpy(dy[name])).sum()
    total.backward()
    ours = named_gradients(net, dy if len(dy) > 1 else dy["logits"])
    found = {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    grads = dict(in_files(model, found))
    theirs = {canonical: grads[name] for canonical, name in named(model, grads).items()}
    assert theirs.keys() == named(model, ours).keys()
    for canonical, name in named(model, ours).items():
        grad = theirs[canonical]
        queries = theirs[queries_for(canonical)]
        least = abs(queries).max() if canonical.endswith("bias") else 0.0
        bound = 1e-4 * max(abs(grad).max(), least)
        assert abs(ours[name] - grad.reshape(ours[name].shape)).max() <= bound, name
    pretrained.save(net, tmp_path / "ours")
    expect_same_bits(model, tmp_path / "ours")


def without_head(kind, which=0):
    """A random model of the family's class without a head, or the class ``which``."""
    known = getattr(transformers, FAMILIES[kind].bare[which])
    torch.manual_seed(0)
    return known(known.config_class(**settings_of(kind) | LIVELY)).eval()


def choices(head, count=3):
    return {"classes": count} if head == heads.CHOICE else {}


@pytest.mark.few(6, full=24)
@pytest.mark.parametrize(("kind", "head"), CASES)
def test_a_new_head_opens_in_transformers(kind, head, tmp_path):
    """Of the model's own class, without a missing array, and with the same outputs."""
    base = without_head(kind)
    count = {} if head == heads.QUESTION else {"classes": 3}
    with pytest.warns(RuntimeWarning, match="are drawn and have to be trained"):
        net = pretrained.load(write(base, tmp_path / "theirs"), head=head, seed=0, **count)
    pretrained.save(net, tmp_path / "ours")
    auto = getattr(transformers, f"AutoModelFor{AUTO[head]}")
    model, told = auto.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(told.values()), told
    assert type(model).__name__ == net.config["architectures"][0]
    x = fed(net, head)
    with torch.no_grad():
        wanted = outputs_of(model.eval(), x)
    for name, ours in by_name(net.forward(False, x)).items():
        mask = there(x, name, ours)
        far = abs((ours - wanted[name].numpy()) * mask).max()
        assert abs(ours).max() > 0
        assert far <= 1e-5 * abs(ours).max()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = pretrained.load(tmp_path / "ours", **choices(head))
    assert again.head == head
    for a, b in zip(again.param_values(), net.param_values(), strict=True):
        assert np.array_equal(a, b)


OWN = [
    (kind, head) for kind, family in FAMILIES.items() if kind in FIRST and kind in heads.HEADS
    for head in (heads.WORDS, heads.IMAGE) if family.bare
    if any(heads.kind_of(name) == head for name in FAMILIES[kind].architectures)
]  # fmt: skip


@pytest.mark.few(4, full=24)
@pytest.mark.parametrize(("kind", "head"), OWN)
def test_heads_that_the_family_draws_are_new_too(kind, head, tmp_path):
    base = write(without_head(kind), tmp_path / "theirs")
    with warnings.catch_warnings():
        # Of tied models nothing is new.
        warnings.simplefilter("ignore")
        net = pretrained.load(base, head=head, seed=0)
    pretrained.save(net, tmp_path / "ours")
    model = getattr(transformers, net.config["architectures"][0])
    model, told = model.from_pretrained(tmp_path / "ours", output_loading_info=True)
    told["missing_keys"] = {n for n in told["missing_keys"] if "num_batches_tracked" not in n}
    assert not any(told.values()), told
    x = fed(net, head)
    with torch.no_grad():
        wanted = model.eval()(**{k: torch.from_numpy(v) for k, v in x.items()}).logits.numpy()
    y = net.forward(False, x)
    count = 1 if "decoder_input_ids" in x else there(x, "logits", y)
    assert abs((y - wanted) * count).max() <= 1e-5 * abs(wanted).max()


@pytest.mark.few(4, full=24)
@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind in FIRST and embeds(kind)])
def test_an_embedding_is_the_mean_of_the_steps_that_are_there(kind, tmp_path):
    made_without = without_head(kind, -1)
    net = pretrained.load(write(made_without, tmp_path / "theirs"), head="embedding")
    assert (net.head, net.loss) == ("embedding", None)
    pretrained.save(net, tmp_path / "ours")
    # An encoder alone has no Auto class, nor have SigLIP's texts.
    known = transformers.AutoModel if has_auto(kind) else type(made_without)
    model, told = known.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(told.values()), told
    x = batch(net)
    with torch.no_grad():
        out = model.eval()(**{k: torch.from_numpy(v) for k, v in x.items()})
    steps = out.last_hidden_state.numpy()
    if steps.ndim == 4:
        steps = steps.reshape(*steps.shape[:2], -1).swapaxes(1, 2)
    mask = x.get("attention_mask", np.ones(steps.shape[:2]))[..., None]
    wanted = (steps * mask).sum(axis=1) / mask.sum(axis=1)
    assert abs(net.predict(x) - wanted).max() <= 1e-5 * abs(wanted).max()


def test_a_classifier_gets_other_classes_and_keeps_the_rest(tmp_path):
    folder = write(made("roberta", heads.SEQUENCE), tmp_path)
    net = pretrained.load(folder)
    with pytest.warns(RuntimeWarning) as told:
        other = pretrained.load(folder, head="sequence-classification", classes=5)
    assert "does not have 'classifier.out_proj.bias', 'classifier.out_proj.weight' of" in str(
        told[0]
    )
    before = dict(zip(net.param_names(), net.param_values(), strict=True))
    for name, value in zip(other.param_names(), other.param_values(), strict=True):
        same = value.shape == before[name].shape and np.array_equal(value, before[name])
        assert same is not name.startswith("logits")
    assert other.config["id2label"] == {str(k): f"LABEL_{k}" for k in range(5)}
    named = pretrained.load(folder, classes=["bad", "good", "new"])
    assert named.config["label2id"] == {"bad": 0, "good": 1, "new": 2}
    for a, b in zip(named.param_values(), net.param_values(), strict=True):
        assert np.array_equal(a, b)
    pretrained.save(named, tmp_path / "named")
    assert pretrained.load(tmp_path / "named").config["id2label"]["1"] == "good"
    with pytest.warns(RuntimeWarning, match="out_proj"):
        pretrained.load(tmp_path / "named", classes=["bad", "good", "old"])
    with pytest.warns(RuntimeWarning, match="qa_outputs"):
        asks = pretrained.load(folder, head="question-answering")
    assert "id2label" not in asks.config
    words = pretrained.load(write(made("roberta", heads.TOKEN), tmp_path / "b"), head="embedding")
    assert words.config["architectures"] == ["RobertaModel"]


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_new_classes_of_towers_have_the_distribution_of_transformers(name, tmp_path):
    write(make(name, 5), tmp_path)
    with pytest.warns(RuntimeWarning):
        net = pretrained.load(tmp_path, head="image-classification", classes=400, seed=1)
    weights = net["logits"].params["weight"].value
    assert weights.std() == pytest.approx(len(weights) ** -0.5, rel=0.05)


def test_new_heads_have_the_distribution_of_transformers(tmp_path):
    folder = write(without_head("bert"), tmp_path)
    given = {"head": "sequence-classification", "classes": 200}
    with pytest.warns(RuntimeWarning):
        net, other = (pretrained.load(folder, seed=seed, **given) for seed in (1, 2))
    values = dict(zip(net.param_names(), net.param_values(), strict=True))
    assert not values["logits/bias"].any()
    weights = values["logits/weight"]
    assert abs(weights.std() / 0.3 - 1) < 0.05
    assert abs(weights.mean()) < 0.02
    again = dict(zip(other.param_names(), other.param_values(), strict=True))
    assert not np.array_equal(weights, again["logits/weight"])


def test_the_last_step_is_by_the_padding_or_by_the_mask(tmp_path):
    """As in transformers by the ids of padding; without such an id a row ends with a token."""
    model = made("llama", heads.SEQUENCE)
    net = pretrained.load(write(model, tmp_path))
    ids = np.array([[5, 6, 7, 0, 0], [0, 0, 5, 6, 7], [5, 0, 7, 8, 9]])
    with torch.no_grad():
        wanted = model(torch.from_numpy(ids)).logits.numpy()
    assert np.allclose(net.forward(False, ids), wanted, atol=1e-5)
    model.config.pad_token_id = None
    write(model, tmp_path)
    bare = pretrained.load(tmp_path)
    assert np.allclose(bare.forward(False, ids[2:]), wanted[2:], atol=1e-5)
    masked = pretrained.load(tmp_path, inputs=["input_ids", "attention_mask"])
    x = {"input_ids": ids[:1], "attention_mask": np.array([[1, 1, 1, 0, 0]])}
    assert np.allclose(masked.forward(False, x), wanted[:1], atol=1e-5)


@pytest.mark.few(3, full=16)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int8"])
@pytest.mark.parametrize(("kind", "head"), CASES)
def test_recorded_steps_are_those_of_the_layers(kind, head, dtype, tmp_path):
    folder = write(without_head(kind), tmp_path)
    nets = []
    for _ in range(2):
        with pytest.warns(RuntimeWarning):
            nets.append(pretrained.load(folder, dtype, head=head, seed=0, **choices(head)))
    nets[1].programs.enabled = False
    x = fed(nets[0], head)
    if dtype == "int8":
        for net in nets:
            # DeBERTa's attention is of dense layers, and its queries and keys serve two.
            own = ["*/value", "*/output"] if kind.startswith("deberta") else "attention"
            net.adapt(lora=2, where=own)
    shape = {name: y.shape for name, y in by_name(nets[0].forward(False, x)).items()}
    rng = np.random.default_rng(2)
    targets = {name: rng.integers(0, of[-1], of[:-1]) for name, of in shape.items()}
    y = targets if len(targets) > 1 else targets["logits"]
    rules = [SGD(lr=0.05), SGD(lr=0.05)]
    for _ in range(3):
        one, other = (net.step(x, y, rule)[0] for net, rule in zip(nets, rules, strict=True))
        assert one == other
    assert nets[0].programs.reports()


@pytest.mark.parametrize(("kind", "given", "said"), [
    ("llama", {"head": "classes"}, "pretrained.load, head: expected 'sequence-classification'"),
    ("llama", {"head": "multiple-choice"}, "expected a head of this family: 'language-model'"),
    ("vit", {"head": "token-classification"}, "'image-classification', 'embedding'"),
    ("bart", {"head": "embedding"}, "'question-answering'; received 'embedding'"),
    ("llama", {"classes": 3}, "pretrained.load, classes: expected head="),
    ("llama", {"head": "question-answering", "classes": 3}, "classes: expected head="),
    ("llama", {"head": "token-classification", "classes": 0}, "classes: expected a number"),
    ("llama", {"head": "token-classification", "classes": ["a", "a"]}, "or distinct names"),
    ("bert", {"head": "multiple-choice", "classes": ["a", "b"]}, "classes: expected a number"),
    ("llama", {"head": "embedding", "inputs": ["input_ids", "segments"]}, "inputs: expected"),
    ("bert", {"head": "token-classification", "inputs": ["tokens"]}, "inputs: expected"),
])  # fmt: skip
def test_what_is_refused(kind, given, said, tmp_path):
    folder = write(without_head(kind), tmp_path)
    with pytest.raises(ArgumentError) as told:
        pretrained.load(folder, **given)
    assert said in str(told.value)


def test_arrays_of_the_model_are_not_drawn(tmp_path):
    model = without_head("bert")
    state = {k: v.numpy() for k, v in model.state_dict().items() if ".0.output.dense" not in k}
    write(model, tmp_path)
    write_folder(tmp_path, state)
    with pytest.raises(StateMismatchError, match="no array for 'bert.encoder.layer.0.output.de"):
        pretrained.load(tmp_path, head="token-classification")
