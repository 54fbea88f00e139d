"""``singanet finetune``: from a folder and a file of texts to a folder that transformers loads."""

import json
import signal

import numpy as np
import pytest

from singanet import FeedForwardNet, pretrained
from singanet.__main__ import main
from singanet.checkpoint import open_state
from singanet.commands.runs.published import is_chat
from singanet.data import Chat, TextFolder
from singanet.report import write_report
from singanet.training.files import furthest
from tests.charts import HERE
from tests.commands.published import LLAMA, published, spoken
from tests.pretrained.configs import CONFIGS

WORDS = ("king", "queen", "ghost", "night", "sword", "crown")


@pytest.fixture(scope="session")
def chats(tmp_path_factory):
    """Questions with one right answer each."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "chats.jsonl"
    lines = []
    for _ in range(200):
        first, second = rng.choice(WORDS, 2)
        lines.append({"prompt": f"Say {first} then {second}", "answer": f"{second} {first}"})
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "texts.txt"
    path.write_text(spoken()[:12000])
    return path


@pytest.mark.parametrize(("line", "said"), [
    ({"text": "ay"}, False), ({"prompt": "ay", "answer": "no"}, True),
    ({"instruction": "ay", "output": "no", "text": "ay no"}, True),
])  # fmt: skip
def test_conversations_are_told_from_texts(line, said, tmp_path):
    """Also those of Alpaca, which have the whole as a text too."""
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(line))
    assert is_chat(str(path)) is said


QUICK = ("--length", 64, "--lr", 0.05, "--quiet")


@pytest.fixture(scope="session")
def tuned(llama, chats, tmp_path_factory):
    """A run of three epochs that nobody changes."""
    out = tmp_path_factory.mktemp("runs") / "run"
    done(llama, chats, out, "--epochs", 3)
    return out


def done(folder, data, out, *options):
    argv = ["finetune", folder, "--data", data, "--out", out, *QUICK, *options]
    assert main([str(part) for part in argv]) == 0


def figures(out, name="figures"):
    return json.loads((out / f"{name}.json").read_text())


def arrays(folder):
    with open_state(folder) as reader:
        return {name: reader.read(name) for name in reader.entries}


def test_what_was_learnt_is_in_the_folder(tuned, capsys):
    tokenizer, net = pretrained.tokenizer(tuned / "model"), pretrained.load(tuned / "model")
    told, samples = figures(tuned), figures(tuned, "samples")
    assert told["validation_perplexity"] < 3 < told["perplexity_before"]
    assert told["tokens_per_second"] > 0
    assert samples["before"] != samples["after"]
    assert len(tokenizer.encode(samples["prompt"]))
    assert (net.most_steps, net.config["vocab_size"]) == (64, 400)
    # The run is named as well as its model.
    argv = ["generate", str(tuned), "Say king then queen", "--temperature", "0", "--length", "8"]
    capsys.readouterr()
    assert main(argv) == 0
    assert {*capsys.readouterr().out.split()} <= {*WORDS}
    assert not HERE or "Samples" in write_report(tuned).read_text("utf-8")


def test_the_perplexity_is_that_of_every_token_kept_back(tuned, llama, chats):
    tokenizer = pretrained.tokenizer(llama)
    loader = Chat(chats, tokenizer, 1, 64, shuffle=False, window=chats.stat().st_size // 32)
    kept_back = loader.keep_back(0.1)
    net = pretrained.load(tuned / "model", inputs=["input_ids", "segments"])
    logs, count = 0.0, 0
    for x, y in kept_back:
        chances = net.predict(x)
        for chance, target in zip(chances[y != -100], y[y != -100], strict=True):
            logs, count = logs - np.log(chance[target]), count + 1
    assert np.isclose(figures(tuned)["validation_perplexity"], np.exp(logs / count), rtol=1e-4)


@pytest.mark.full
def test_transformers_loads_it(tuned):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tuned / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tuned / "model")
    ids = np.array([tokenizer.encode("Say king")])
    ours = pretrained.load(tuned / "model").forward(False, ids)
    with torch.no_grad():
        assert np.allclose(theirs(torch.tensor(ids)).logits.numpy(), ours, atol=1e-4)


@pytest.mark.few(1, full=1)
@pytest.mark.parametrize("options",
    [(), ("--memory-budget", "200MB"), ("--method", "lora"), ("--method", "blocks")])  # fmt: skip
def test_it_goes_on_to_the_bit(llama, texts, tmp_path, options, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    # The rate falls over all epochs, which are said at once.
    done(llama, texts, whole, "--epochs", 2, *options)
    done(llama, texts, parts, "--epochs", 2, "--keep", 2, *options)
    for name in ("epoch-0002.npz", "best.npz", "figures.json", "outcome.json"):
        (parts / name).unlink(missing_ok=True)
    (parts / "model/model.safetensors").unlink()
    given, fit = [], FeedForwardNet.fit

    def seen(net, *args, resume=None, **kwargs):
        given.append(resume)
        return fit(net, *args, resume=resume, **kwargs)

    monkeypatch.setattr(FeedForwardNet, "fit", seen)
    assert furthest(parts).name == "epoch-0001.npz"
    assert main(["finetune", "--out", str(parts), "--resume", "--quiet"]) == 0
    # No arrays, which would stay beside the net's for as long as it trains.
    assert given == [parts]
    ours, theirs = arrays(parts / "model"), arrays(whole / "model")
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert (parts / "history.csv").read_text() == (whole / "history.csv").read_text()
    for name in ("validation_perplexity", "perplexity_before"):
        assert figures(parts)[name] == figures(whole)[name]


def test_who_interrupts_it_is_told_how_to_go_on(llama, texts, tmp_path, capsys, signals_at):
    run = tmp_path / "run"
    argv = ["finetune", str(llama), "--data", str(texts), "--length", "32", "--quiet"]
    signals_at(2)
    assert main([*argv, "--out", str(run)]) == 128 + signal.SIGINT
    how = f"singanet finetune --out {run} --resume"
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"singanet: interrupted; resume with: {how}"
    before = figures(run, "samples")
    assert main([*how.split()[1:], "--quiet"]) == 0
    assert figures(run, "samples") == {**before, "after": figures(run, "samples")["after"]}
    assert {"before", "loss_before"} <= before.keys()
    assert "perplexity_before" in figures(run)


def test_the_plan_is_told_first_and_the_speed_in_tokens(llama, texts, tmp_path, capsys):
    argv = ["finetune", llama, "--data", texts, "--out", tmp_path / "run", "--length", 32]
    argv += ["--memory-budget", "200MB", "--steps-per-epoch", 2]
    assert main([str(part) for part in argv]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "batches of 8 within 200.0 MB: as it is"
    assert any("tokens/s" in line for line in lines)


def test_a_file_to_validate_with(llama, texts, chats, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(spoken()[20000:21000])
    done(llama, texts, tmp_path / "run", "--validation", other, "--optimizer", "adamw")
    net = pretrained.load(tmp_path / "run/model", inputs=["input_ids", "segments"])
    loader = TextFolder(other, pretrained.tokenizer(llama), 64, 64, shuffle=False)
    (x, y), *_ = loader
    loss, _ = net.evaluate(x, y)
    assert np.isclose(figures(tmp_path / "run")["test_loss"], loss, rtol=1e-4)


def test_all_data_may_be_trained_on(llama, texts, tmp_path, refused, told):
    run = tmp_path / "run"
    done(llama, texts, run, "--validation-split", 0)
    assert figures(run)["test_loss"] is None
    assert "validation_perplexity" not in figures(run)
    assert {"before", "after"} <= figures(run, "samples").keys()
    assert "trained on all of its data; pass other data by --data" in refused("evaluate", run)
    assert "perplexity" in told("evaluate", run, "--data", texts)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_rows_of_one_text_each(kind, chats, tmp_path):
    config = CONFIGS["gpt2"] | {"vocab_size": 400, "n_positions": 64} if kind == "gpt2" else LLAMA
    folder, run = published(config, tmp_path / "model"), tmp_path / "run"
    pack = () if kind == "gpt2" else ("--no-pack",)
    done(folder, chats, run, *pack, "--prompt", "Say king then queen")
    assert (run / "model/config.json").is_file()
    assert figures(run, "samples")["prompt"].startswith("Say king")


@pytest.mark.full
@pytest.mark.parametrize("budget", [(), ("--memory-budget", "200MB")])
def test_pairs_are_trained_and_added_into_the_weights(llama, chats, tmp_path, budget):
    out, method = tmp_path / "run", ("--method", "lora", "--rank", 4, "--epochs", 3)
    done(llama, chats, out, *method, *budget, "--prompt", "Say king then queen")
    told = figures(out)
    assert told["validation_perplexity"] < told["perplexity_before"] / 2
    base, tuned = arrays(llama), arrays(out / "model")
    pairs = arrays(out / "adapter/adapter_model.safetensors")
    config = figures(out / "adapter", "adapter_config")
    assert config["r"] == 4
    # W + (alpha / r) B A, of the projections of attention; the rest is as it was.
    for name, array in base.items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{module}.lora_A.weight" in pairs:
            a, b = (pairs[f"{module}.lora_{side}.weight"] for side in "AB")
            array = array + config["lora_alpha"] / config["r"] * (b @ a)
        np.testing.assert_allclose(tuned[name], array, rtol=1e-5, atol=1e-6)
    assert sum("lora_A" in name for name in pairs) == 4 * LLAMA["num_hidden_layers"]
    samples = figures(out, "samples")
    net, tokenizer = pretrained.load(out / "model"), pretrained.tokenizer(out / "model")
    ids = tokenizer.prompt([{"role": "user", "content": samples["prompt"]}])
    assert samples["before"] != samples["after"]
    written = [*net.generate([ids], 48, temperature=0)[0]]
    ends = [k for k, id in enumerate(written) if id == tokenizer.eos_id]
    assert samples["after"] == tokenizer.decode(written[: ends[0] if ends else None])


@pytest.mark.full
def test_blocks_are_trained_in_turns(llama, texts, tmp_path):
    out = tmp_path / "run"
    done(llama, texts, out, "--method", "blocks", "--epochs", 2, "--lr", 0.01)
    assert figures(out)["validation_perplexity"] < figures(out)["perplexity_before"]
    base, tuned = arrays(llama), arrays(out / "model")
    assert all(not np.array_equal(base[name], tuned[name]) for name in base)
    with np.load(out / "epoch-0002.npz") as state:
        # State of one block alone.
        there = {key.split("/")[2] for key in state if key.startswith("optimizer/layers/")}
        others = {key for key in state if key.startswith(("optimizer/embed", "optimizer/logits"))}
        assert len(there) + bool(others) == 1


def test_runs_are_evaluated_and_not_predicted_with(tuned, texts, tmp_path, told, refused):
    wanted = figures(tuned)["validation_perplexity"]
    out = told("evaluate", tuned, "--json", tmp_path / "a.json")
    assert float(out.split()[-1]) == pytest.approx(wanted, abs=1e-3)
    assert json.loads((tmp_path / "a.json").read_text())["test_loss"] == pytest.approx(
        np.log(wanted), rel=1e-5
    )
    best = float(told("evaluate", tuned, "--best").split()[-1])
    assert best == pytest.approx(wanted, rel=0.2)
    assert float(told("evaluate", tuned / "best.npz").split()[-1]) == best
    other = float(told("evaluate", tuned, "--data", texts).split()[-1])
    loader = TextFolder(texts, pretrained.tokenizer(tuned / "model"), 64, 64, shuffle=False)
    net = pretrained.load(tuned / "model", inputs=["input_ids", "segments"])
    assert other == pytest.approx(np.exp(net.evaluate(loader).loss), rel=1e-4)
    message = refused("predict", tuned, "--out", tmp_path / "a.csv")
    assert "singanet generate" in message
    assert not (tmp_path / "a.csv").exists()


@pytest.mark.full
def test_runs_of_pairs_are_evaluated_whatever_is_left_of_them(llama, texts, tmp_path, told):
    out, gone = tmp_path / "run", tmp_path / "gone"
    done(llama, texts, out, "--method", "lora")
    wanted = figures(out)["validation_perplexity"]
    for names in ([], ["model/config.json"], [path.name for path in out.glob("*.npz")]):
        for k, name in enumerate(names):
            (out / name).rename(f"{gone}{k}")
        assert float(told("evaluate", out).split()[-1]) == pytest.approx(wanted, abs=1e-3)
        for k, name in enumerate(names):
            (tmp_path / f"gone{k}").rename(out / name)
