"""``singanet finetune --method dpo|orpo|kto|reward``: from pairs of answers to a folder."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest

from singanet import pretrained
from singanet.__main__ import main
from singanet.checkpoint import open_state
from singanet.commands.runs.preferences import REFERENCE
from tests.commands.published import published
from tests.commands.test_launch import ENVIRONMENT
from tests.data.tokens.test_pairs import lines
from tests.pretrained.configs import CONFIGS


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    place = tmp_path_factory.mktemp("pairs")
    for name, judged in (("pairs", False), ("judged", True)):
        some = [entry for entry in lines(90, judged) if isinstance(entry["prompt"], str)]
        (place / f"{name}.jsonl").write_text("\n".join(map(json.dumps, some)))
    return place


def done(folder, data, out, method, *options):
    file = data / ("judged.jsonl" if method == "kto" else "pairs.jsonl")
    argv = ["finetune", folder, "--data", file, "--out", out, "--method", method, "--length", 64]
    argv += ["--lr", 0.01, "--epochs", 2, "--quiet", *options]
    assert main([str(part) for part in argv]) == 0


def history(out):
    with (out / "history.csv").open() as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


def arrays(folder):
    with open_state(folder) as reader:
        return {name: reader.read(name) for name in reader.entries}


def of_epochs(told):
    """The newest lines of what was printed, without times."""
    return told.splitlines()[-1]


@pytest.mark.few(2, full=2)
@pytest.mark.parametrize(("method", "options"), [
    ("dpo", ("--beta", 0.5)), ("orpo", ("--validation-split", 0)), ("kto", ()), ("reward", ()),
])  # fmt: skip
def test_rewards_rise_and_are_in_the_history(llama, data, tmp_path, method, options, told):
    out = tmp_path / "run"
    done(llama, data, out, method, *options)
    first, last = history(out)
    names = ["chosen_reward", "rejected_reward", "reward_margin"]
    names += ["reward_accuracy"] if method != "kto" else []
    assert first.keys() >= {"loss", *names}
    assert last["loss"] < first["loss"]
    assert last["reward_margin"] > first["reward_margin"]
    figures = json.loads((out / "figures.json").read_text())
    assert (out / REFERENCE).is_file() == (method in ("dpo", "kto"))
    assert (out / "samples.json").is_file() == (method != "reward")
    if method == "orpo":
        assert (figures["test_loss"], "val_loss" in last) == (None, False)
        file = data / "pairs.jsonl"
        assert "validation loss" in told("evaluate", out, "--data", file)
    else:
        assert figures["test_loss"] == pytest.approx(last["val_loss"], rel=1e-5)
        said = told("evaluate", out)
        assert f"validation loss {last['val_loss']:.4f}" in said
        assert f"reward margin {last['val_reward_margin']:.4f}" in said
    config = json.loads((out / "model/config.json").read_text())
    kind = "SequenceClassification" if method == "reward" else "CausalLM"
    assert config["architectures"] == [f"LlamaFor{kind}"]
    if method != "reward":
        assert pretrained.load(out / "model").ports().inputs == ["input_ids"]


@pytest.mark.full
def test_low_rank_pairs_within_a_budget(llama, data, tmp_path):
    out = tmp_path / "run"
    done(llama, data, out, "dpo", "--rank", 4, "--memory-budget", "100MB")
    first, last = history(out)
    assert last["reward_margin"] > first["reward_margin"]
    base, tuned = arrays(llama), arrays(out / "model")
    changed = {name for name in base if not np.array_equal(base[name], tuned[name])}
    assert changed
    assert all("self_attn" in name for name in changed)
    assert len(arrays(out / "adapter/adapter_model.safetensors")) == 2 * len(changed)


def test_rewards_by_low_rank_pairs_are_saved_whole(llama, data, tmp_path):
    done(llama, data, tmp_path / "run", "reward", "--rank", 4)
    first, last = history(tmp_path / "run")
    assert last["reward_margin"] > first["reward_margin"]
    tuned = arrays(tmp_path / "run/model")
    assert tuned["score.weight"].shape[0] == 1
    assert not any("lora" in name for name in tuned)
    # Such files cannot store the score.
    assert not (tmp_path / "run/adapter").exists()


@pytest.mark.few(1, full=1)
@pytest.mark.parametrize("method", ["dpo", "kto", "reward"])
def test_it_goes_on_to_the_bit(llama, data, tmp_path, method):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for out in (whole, parts):
        done(llama, data, out, method, "--keep", 2)
    for name in ("epoch-0002.npz", "best.npz", "figures.json", "outcome.json"):
        (parts / name).unlink(missing_ok=True)
    (parts / "model/model.safetensors").unlink()
    assert main(["finetune", "--out", str(parts), "--resume", "--quiet"]) == 0
    ours, theirs = arrays(parts / "model"), arrays(whole / "model")
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert (parts / "history.csv").read_text() == (whole / "history.csv").read_text()


@pytest.mark.full
def test_ranks_tune_and_validate_as_one_process(llama, data, tmp_path):
    pytest.importorskip("mpi4py", exc_type=ImportError)
    done(llama, data, tmp_path / "one", "dpo", "--optimizer", "sgd")
    argv = ["launch", "-n", "2", "train", "--from", llama, "--data", data / "pairs.jsonl"]
    argv += ["--method", "dpo", "--length", 64, "--lr", 0.01, "--epochs", 2, "--quiet"]
    argv += ["--optimizer", "sgd", "--out", tmp_path / "two"]
    command = [sys.executable, "-m", "singanet", *map(str, argv)]
    ended = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr
    for one, two in zip(*(history(tmp_path / name) for name in ("one", "two")), strict=True):
        for name in ("loss", "reward_margin", "val_loss", "val_reward_margin"):
            assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), name


def test_a_file_to_validate_with_has_its_own_reference(llama, data, tmp_path, told):
    out, other = tmp_path / "run", tmp_path / "other.jsonl"
    some = [each for each in lines(30, seed=7) if isinstance(each["prompt"], str)]
    other.write_text("\n".join(map(json.dumps, some)))
    done(llama, data, out, "dpo", "--validation", other)
    said = told("evaluate", out)
    assert f"validation loss {history(out)[-1]['val_loss']:.4f}" in said
    assert said == told("evaluate", out, "--data", other)
    assert len([*out.glob("reference*.npz")]) == 2


def test_models_and_runs_that_are_refused(data, llama, tmp_path, refused):
    gpt2 = CONFIGS["gpt2"] | {"vocab_size": 400, "n_positions": 64}
    folder, file = published(gpt2, tmp_path / "model"), data / "pairs.jsonl"
    argv = "--data", file, "--out", tmp_path / "run", "--method", "dpo"
    assert "a model that separates the texts of a row" in refused("finetune", folder, *argv)
    done(llama, data, tmp_path / "run", "reward", "--epochs", 1)
    for state in (tmp_path / "run").glob("*.npz"):
        state.unlink()
    assert "expected a checkpoint of the run" in refused("evaluate", tmp_path / "run")
