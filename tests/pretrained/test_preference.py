"""Preference tuning beside trl, in a net of both answers of a pair."""

import json

import numpy as np
import pytest

from singanet import FeedForwardNet, pretrained
from singanet.budget.fitting import _extent
from singanet.budget.search import plan_memory
from singanet.checkpoint import open_state
from singanet.data import Pairs
from singanet.errors import ArgumentError
from singanet.loss import DPO, KTO, ORPO, RewardRanking, SquaredError, head_loss
from singanet.metric import Reward
from singanet.optimizer import SGD, Adam
from tests.commands.published import LLAMA, published
from tests.data.tokens.test_pairs import lines
from tests.pretrained.configs import CONFIGS

pytest.importorskip("tokenizers")
LOSSES = {"dpo": DPO, "orpo": ORPO, "kto": KTO, "reward": RewardRanking}
NAMES = {
    "chosen_reward": "rewards/chosen", "rejected_reward": "rewards/rejected",
    "reward_margin": "rewards/margins", "reward_accuracy": "rewards/accuracies",
}  # fmt: skip
INPUTS = ["input_ids", "segments"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return published(LLAMA, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files of pairs and of judged lines, all of texts."""
    place = tmp_path_factory.mktemp("data")
    for name, judged in (("pairs", False), ("judged", True)):
        some = [each for each in lines(30, judged) if isinstance(each["prompt"], str)]
        (place / f"{name}.jsonl").write_text("\n".join(map(json.dumps, some)))
    return place


def drawn(folder, method, rank=0, **more):
    base = pretrained.load(folder, inputs=INPUTS, seed=0)
    if rank:
        base.adapt(rank)
    return pretrained.preference_net(base, LOSSES[method](**more), seed=0)


def loader_of(folder, data, method, **more):
    path = data / ("judged.jsonl" if method == "kto" else "pairs.jsonl")
    return Pairs(path, pretrained.tokenizer(folder), 4, 63, method=method, shuffle=False, **more)


def arrays(folder):
    with open_state(folder) as reader:
        return {name: reader.read(name) for name in reader.entries}


def theirs(folder, data, method, steps):
    """The losses of trl's trainer, and its model."""
    datasets, torch = pytest.importorskip("datasets"), pytest.importorskip("torch")
    trl, transformers = pytest.importorskip("trl"), pytest.importorskip("transformers")
    kinds = {"dpo": "DPO", "kto": "KTO", "reward": "Reward"}
    if method == "orpo":
        made = pytest.importorskip("trl.experimental.orpo")
        config, trainer = made.ORPOConfig, made.ORPOTrainer
    else:
        config, trainer = (getattr(trl, f"{kinds[method]}{part}") for part in ("Config", "Trainer"))
    head = "SequenceClassification" if method == "reward" else "CausalLM"
    auto = getattr(transformers, f"AutoModelFor{head}")
    model = auto.from_pretrained(folder, dtype=torch.float32)
    options = config(
        output_dir=str(data / "trl"), per_device_train_batch_size=4, learning_rate=0.05,
        optim="sgd", lr_scheduler_type="constant", max_grad_norm=0.0, max_steps=steps,
        logging_steps=1, use_cpu=True, report_to="none", bf16=False, save_strategy="no",
        max_length=64, train_sampling_strategy="sequential", disable_tqdm=True,
        gradient_checkpointing=False,
    )  # fmt: skip
    file = data / ("judged.jsonl" if method == "kto" else "pairs.jsonl")
    rows = datasets.Dataset.from_list([json.loads(line) for line in file.open()])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tuner = trainer(model=model, args=options, train_dataset=rows, processing_class=tokenizer)
    tuner.train()
    return [each for each in tuner.state.log_history if "loss" in each], model


@pytest.mark.few(1, full=3)
@pytest.mark.parametrize("method", LOSSES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning",
                            "ignore::UserWarning")  # fmt: skip
def test_losses_rewards_and_steps_are_trls(folder, data, tmp_path, method):
    net, steps = drawn(folder, method), 3
    pretrained.save(net, tmp_path / "start")
    told, model = theirs(tmp_path / "start", data, method, steps)
    loader = loader_of(folder, data, method)
    if loader.needs_reference:
        loader.refer(net)
    net.compile(SGD(learning_rate=0.05), net.loss, metrics=Reward.each(net.loss))
    for (x, y), step in zip(loader, told, strict=False):
        found = net.train_on_batch(x, y)
        wanted = {ours: step[name] for ours, name in NAMES.items() if name in step}
        if method == "reward":
            wanted = {"reward_margin": step["margin"], "reward_accuracy": step["accuracy"]}
        assert wanted or method == "kto"
        assert found["loss"] == pytest.approx(step["loss"], abs=1e-5)
        for name, value in wanted.items():
            assert found[name] == pytest.approx(value, abs=1e-5), name
    pretrained.save(net, tmp_path / "tuned")
    state = model.state_dict()
    for name, array in arrays(tmp_path / "tuned").items():
        np.testing.assert_allclose(array, state[name].numpy(), atol=1e-5, err_msg=name)


def test_log_probabilities_are_those_of_the_scores(folder, data, monkeypatch):
    """Of each text alone, whose scores are whole; in blocks of some rows here."""
    monkeypatch.setattr(head_loss, "BLOCK", 7 * 400 * 4)
    monkeypatch.setattr(head_loss, "FEWEST_ROWS", 1)
    net, alone = drawn(folder, "orpo"), pretrained.load(folder, inputs=["input_ids"])
    (x, y), *_ = loader_of(folder, data, "orpo")
    found = net.predict(x)
    for r in range(len(y)):
        for k in range(3):
            here = x["segments"][r] == (2 if k == 1 else 1)
            scores = alone.forward(False, x["input_ids"][r][here][None])[0].astype(float)
            logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
            logs = np.take_along_axis(logs, x["labels"][r][here][:, None], 1)[:, 0]
            wanted = (logs * x["parts"][r, k][here]).sum()
            assert found[r, k] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("method", ["dpo", "reward"])
def test_low_rank_pairs_leave_the_rest_and_are_written(folder, data, tmp_path, method):
    net = drawn(folder, method, rank=4)
    loader = loader_of(folder, data, method)
    if method == "dpo":
        base = drawn(folder, method)
        loader.refer(net)
        (x, y), *_ = loader
        np.testing.assert_allclose(y, base.predict(x), rtol=1e-5)
    net.compile(Adam(learning_rate=0.02), net.loss)
    before = {param.name: param.value.copy() for param in net.params()}
    losses = net.fit(loader, epochs=3, verbose=False)["loss"]
    assert losses[-1] < losses[0] - 0.1
    for param in net.params():
        trained = "_a" in param.name or "_b" in param.name or param.name.startswith("score")
        assert trained != np.array_equal(before[param.name], param.value) or param.name
    pretrained.save(net, tmp_path / "merged", merged=True)
    if method == "dpo":
        pretrained.save_adapter(net, tmp_path / "adapter")
        again = drawn(tmp_path / "merged", method)
        np.testing.assert_allclose(again.predict(x), net.predict(x), rtol=1e-4)


def test_a_model_of_rewards_opens_in_transformers(folder, data, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    net = drawn(folder, "reward")
    pretrained.save(net, tmp_path / "reward")
    kind = transformers.AutoModelForSequenceClassification
    model, info = kind.from_pretrained(tmp_path / "reward", output_loading_info=True)
    assert not info["missing_keys"]
    assert model.config.num_labels == 1
    (x, _), *_ = loader_of(folder, data, "reward")
    found = net.predict(x)
    for r, k in np.ndindex(found.shape):
        ids = torch.tensor(x["input_ids"][r][x["segments"][r] == k + 1][None])
        with torch.no_grad():
            assert found[r, k] == pytest.approx(model(ids).logits.item(), abs=1e-4)


@pytest.mark.parametrize("budget", [None, "30MB"])
def test_steps_are_recorded_and_planned(folder, data, budget):
    """Recorded, within a budget and by the layers: the same losses."""
    found = []
    for recorded in (True, False):
        net = drawn(folder, "dpo", beta=0.3)
        net.programs.on = recorded
        loader = loader_of(folder, data, "dpo", pad_to=())
        loader.refer(net)
        net.compile(SGD(learning_rate=0.05), net.loss, metrics=Reward.each(net.loss))
        given = {"batch_size": 4, "memory_budget": budget} if budget and recorded else {}
        found.append(net.fit(loader, epochs=2, verbose=False, **given))
    for name in ("loss", "reward_margin"):
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_narrow_weights(folder, data, dtype):
    """As in float32, up to rounding; of integers low-rank pairs are trained."""
    losses = []
    for narrow in (False, True):
        net, loader = (
            drawn(folder, "dpo", rank=4 * (dtype == "int8")),
            loader_of(folder, data, "dpo"),
        )
        if narrow:
            (net.as_type if dtype == "bfloat16" else net.quantize)(dtype)
        loader.refer(net)
        net.compile(Adam(learning_rate=2e-3), net.loss)
        losses.append(net.fit(loader, epochs=3, verbose=False)["loss"])
    assert losses[1][-1] < losses[1][0]
    np.testing.assert_allclose(*losses, rtol=0.02)


def test_a_budget_plans_for_rows_of_two_texts_in_each_width(folder, data):
    net, loader = drawn(folder, "dpo"), loader_of(folder, data, "dpo")
    assert (_extent(net, loader), len(loader.widths)) == (126, 4)
    given = net, 4, SGD(learning_rate=0.05), "100MB", 126
    one, four = (plan_memory(*given, widths=widths).chosen.memory.parts for widths in (1, 4))
    assert four["other programs"] == 3 * one["program"]


def test_a_model_of_rewards_is_the_classifier_of_its_family(tmp_path):
    # Named unlike its language model.
    base = pretrained.build(CONFIGS["gemma3_text"], inputs=INPUTS, seed=0)
    net = pretrained.preference_net(base, RewardRanking(), seed=0)
    pretrained.save(net, tmp_path)
    assert net.config["architectures"] == ["Gemma3TextForSequenceClassification"]
    again = pretrained.load(tmp_path)
    assert np.array_equal(
        again["logits"].params["weight"].value, net["score"].params["weight"].value
    )


def test_nets_that_are_refused(folder, tmp_path):
    def refused(words, net, loss=None):
        with pytest.raises(ArgumentError, match=f"preference_net.*{words}"):
            pretrained.preference_net(net, DPO() if loss is None else loss)

    net = pretrained.load(folder, inputs=INPUTS)
    refused("a loss of preferences", net, SquaredError())
    refused("inputs=", pretrained.load(folder))
    refused("from pretrained.load", FeedForwardNet())
    bare = CONFIGS["llama"] | {"architectures": ["LlamaModel"]}
    refused("a LlamaForCausalLM", pretrained.build(bare, inputs=INPUTS))
    refused("a cap on its scores", pretrained.build(CONFIGS["gemma2"], inputs=INPUTS))
    unclassified = pretrained.build(CONFIGS["granite"], inputs=INPUTS)
    with pytest.raises(ArgumentError, match="no such class"):
        pretrained.preference_net(unclassified, RewardRanking())
    for dtype in ("bfloat16", "int8"):
        refused(
            "narrow weights; .*as_type or quantize", pretrained.load(folder, dtype, inputs=INPUTS)
        )
    net.adapt(2, where="all")
    refused("a low-rank pair of the head", net)
