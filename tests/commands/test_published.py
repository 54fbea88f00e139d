"""``singanet generate`` and ``embed``, and ``plan`` and ``summary`` of published models."""

import json
import re
import sys

import numpy as np
import pytest

from singanet import pretrained
from singanet.__main__ import main
from tests.commands.published import LLAMA, published
from tests.pretrained.configs import CONFIGS


def out_of(capsys, *argv):
    capsys.readouterr()
    assert main([str(part) for part in argv]) == 0
    return capsys.readouterr().out


# -- generate -------------------------------------------------------------------------------------


def expected(folder, ids, **drawn):
    """What `net.generate` goes on with."""
    net, tokenizer = pretrained.load(folder), pretrained.tokenizer(folder)
    found = net.generate([ids], 12, stop=tokenizer.eos_id, **drawn)[0]
    return tokenizer.decode(found)


@pytest.mark.parametrize("drawn",
    [
        {"temperature": 0},
        {"temperature": 0.9, "top_p": 0.8, "seed": 3},
        {"min_p": 0.1, "repetition_penalty": 1.3, "temperature": 0.8, "seed": 3},
        {"num_beams": 3, "length_penalty": 0.5, "no_repeat_ngram_size": 2},
        {"bad_words": "king", "temperature": 0},
        {"guide": "[a-z]{2,5}", "temperature": 0},
    ])  # fmt: skip
def test_it_answers_by_the_template_and_writes_on_without(llama, capsys, drawn):
    options = [part for name, value in drawn.items() for part in (f"--{name}", value)]
    options = [str(each).replace("_", "-") for each in options]
    tokenizer = pretrained.tokenizer(llama)
    told = out_of(capsys, "generate", llama, "Speak", "--length", 12, *options)
    asked = tokenizer.prompt([{"role": "user", "content": "Speak"}])
    assert told == expected(llama, asked, **drawn) + "\n"
    told = out_of(capsys, "generate", llama, "Speak", "--raw", "--length", 12, *options)
    assert told == "Speak" + expected(llama, tokenizer.encode("Speak"), **drawn) + "\n"


def test_it_ends_before_a_stop(llama, capsys):
    argv = ("generate", llama, "Speak", "--temperature", 0, "--length", 12)
    whole = out_of(capsys, *argv)
    stop = whole[4:6]
    told = out_of(capsys, *argv, "--stop", stop, "--stop", "never, never")
    assert told == whole[: whole.index(stop)] + "\n"


def test_a_guide_may_be_a_schema(llama, capsys, tmp_path, refused):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    schema |= {"additionalProperties": False}
    file = tmp_path / "schema.json"
    argv = ["generate", str(llama), "Speak", "--temperature", "0", "--guide", str(file)]
    assert "schema.json" in refused(*argv)
    for wrong in ("[1]", "{", '{"type": 5}'):
        file.write_text(wrong)
        assert "guide" in refused(*argv)
    file.write_text(json.dumps(schema))
    assert set(json.loads(out_of(capsys, *argv))) == {"a"}


NAMED = [
    ["finetune", "Org/Tiny", "--data", "texts", "--out", "run"],
    ["generate", "Org/Tiny", "Speak"],
    ["embed", "Org/Tiny", "lines.txt", "--out", "rows.npy"],
]


@pytest.mark.parametrize("argv", NAMED, ids=lambda argv: argv[0])
def test_a_name_is_looked_for_on_the_hub(argv, tmp_path, monkeypatch, refused):
    def unreachable(name, **options):
        raise ConnectionError(f"no way to {name}")

    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("one\n")
    monkeypatch.setattr(hub, "snapshot_download", unreachable)
    told = refused(*argv)
    assert "from the hub ConnectionError: no way to Org/Tiny" in told
    assert "hf download Org/Tiny --local-dir FOLDER" in told
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'singanet[hub]'" in refused(*argv)
    assert {path.name for path in tmp_path.iterdir()} == {"lines.txt"}


def test_a_model_of_the_hub_answers_and_is_tuned(llama, tmp_path, monkeypatch, capsys):
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **options: str(llama))
    argv = ("Speak", "--temperature", 0, "--length", 4)
    assert out_of(capsys, "generate", "Org/Tiny", *argv) == out_of(capsys, "generate", llama, *argv)
    (tmp_path / "some.txt").write_text("To be, or not to be: that is the question.\n" * 40)
    argv = ("--data", tmp_path / "some.txt", "--out", tmp_path / "run", "--length", 32)
    for further in ((), ("--resume", "--epochs", 2)):
        out_of(capsys, "finetune", "Org/Tiny", *argv, "--quiet", "--epochs", 1, *further)
    assert len((tmp_path / "run/history.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    "drawn", [("--temperature", 0), ("--temperature", 0, "--raw", "--stop", "never"), ("--seed", 3)]
)
def test_a_draft_writes_ahead(llama, capsys, tmp_path, drawn):
    published(LLAMA | {"num_hidden_layers": 1}, tmp_path)
    argv = ("generate", llama, "Speak", "--length", 12, *drawn)
    whole = out_of(capsys, *argv)
    assert main([str(part) for part in (*argv, "--draft", tmp_path, "--ahead", 3)]) == 0
    told = capsys.readouterr()
    assert re.fullmatch(r"accepted from the draft: \d+ of \d+ tokens, \d+%\n", told.err)
    if "--temperature" in drawn:
        assert told.out == whole
    argv = (*argv, "--draft", llama)
    assert main([str(part) for part in argv]) == 0
    assert ", 100%" in capsys.readouterr().err


def test_a_draft_with_other_tokens_is_refused(llama, capsys, tmp_path):
    published(LLAMA, tmp_path)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    words = tokenizer["model"]["vocab"]
    first, second = list(words)[:2]
    words[first], words[second] = words[second], words[first]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    assert main(["generate", str(llama), "Speak", "--draft", str(tmp_path)]) == 2
    assert "a model with the tokenizer of the main model" in capsys.readouterr().err


def test_the_system_is_told_first(llama, capsys):
    tokenizer = pretrained.tokenizer(llama)
    roles = [("system", "Be kind."), ("user", "Speak")]
    asked = tokenizer.prompt([{"role": role, "content": text} for role, text in roles])
    argv = ("generate", llama, "Speak", "--system", "Be kind.", "--length", 12)
    told = out_of(capsys, *argv, "--temperature", 0)
    assert told == expected(llama, asked, temperature=0) + "\n"


def test_it_ends_where_any_file_of_the_model_says(llama, capsys, tmp_path):
    net, tokenizer = pretrained.load(llama), pretrained.tokenizer(llama)
    ids = net.generate([tokenizer.encode("Speak")], 8, temperature=0)[0].tolist()
    last = ids.index(ids[-1])
    pretrained.save(net, tmp_path)
    tokenizer.save(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids[-1], 2]}))
    argv = ("generate", tmp_path, "Speak", "--raw", "--temperature", 0, "--length", 40)
    assert out_of(capsys, *argv) == "Speak" + tokenizer.decode(ids[:last]) + "\n"


def test_a_model_without_a_template_writes_on(tmp_path, capsys):
    folder = published(LLAMA, tmp_path, None)
    argv = ("generate", folder, "Speak", "--temperature", 0, "--length", 5)
    assert out_of(capsys, *argv) == out_of(capsys, *argv, "--raw")


@pytest.mark.parametrize("argv", [
    ("generate", "{}", "a"),
    ("embed", "{}", "{}/a.txt", "--out", "{}/a.npy"),
    ("finetune", "{}", "--data", "{}/a.txt", "--out", "{}/run"),
    ("finetune", "{}", "--data", "{}/a.csv", "--out", "{}/run", "--target", "kind",
     "--head", "sequence-classification"),
])  # fmt: skip
def test_an_encoder_decoder_is_refused_by_name(argv, tmp_path, refused):
    published(CONFIGS["t5"] | {"vocab_size": 400}, tmp_path)
    (tmp_path / "a.txt").write_text("a king\n")
    (tmp_path / "a.csv").write_text("said,kind\na king,x\na ghost,y\n")
    told = refused(*(part.format(tmp_path) for part in argv))
    assert f"model '{tmp_path}': expected a model of texts alone" in told
    assert "'decoder_input_ids'" in told


def test_a_tokenizer_of_another_model_is_refused(tmp_path, refused):
    folder = published(LLAMA | {"vocab_size": 300}, tmp_path)
    assert "a tokenizer of at most 300 tokens" in refused("generate", folder, "a")


# -- embed ----------------------------------------------------------------------------------------


def test_each_line_is_a_row_of_its_own(sentence_model, tmp_path, capsys):
    lines = ["to be", "", "or not to be, that is the question", "é"]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n", "utf-8")
    target = tmp_path / "rows.npy"
    told = out_of(capsys, "embed", sentence_model, tmp_path / "lines.txt", "--out", target)
    assert "4 embeddings of 16 dimensions" in told
    rows = np.load(target)
    assert np.isfinite(rows).all()
    net, tokenizer = pretrained.load(sentence_model), pretrained.tokenizer(sentence_model)
    for row, line in zip(rows, lines, strict=True):
        ids = tokenizer.encode(line)[None]
        if ids.size:
            alone = [ids, np.ones_like(ids), np.zeros_like(ids)]
            assert np.allclose(row, net.predict(alone)[0], atol=1e-5)
    argv = ("embed", sentence_model, tmp_path / "lines.txt", "--out", target, "--batch-size", 1)
    out_of(capsys, *argv)
    assert np.allclose(np.load(target), rows, atol=1e-5)


def test_long_sentences_are_refused_or_cut(sentence_model, tmp_path, capsys, refused):
    tokenizer, text = pretrained.tokenizer(sentence_model), "to be or not " * 20
    (tmp_path / "lines.txt").write_text(f"to\n{text}")
    argv = ("embed", sentence_model, tmp_path / "lines.txt", "--out", tmp_path / "rows.npy")
    assert "line 2 of the texts: expected at most 32 tokens" in refused(*argv)
    assert not (tmp_path / "rows.npy").exists()
    out_of(capsys, *argv, "--cut")
    ids = tokenizer.encode(text)[None, :32]
    alone = [ids, np.ones_like(ids), np.zeros_like(ids)]
    made = pretrained.load(sentence_model).predict(alone)[0]
    assert np.allclose(np.load(tmp_path / "rows.npy")[1], made, atol=1e-5)


# -- plan and summary -----------------------------------------------------------------------------


def test_plans_of_folders_are_those_of_loaded_nets(llama, capsys):
    from singanet.optimizer import Adafactor

    argv = ("plan", llama, "--tokens", 32, "--allow", "recompute,offload")
    told = out_of(capsys, *argv)
    assert "adafactor" not in told
    plan = pretrained.load(llama).plan(1, Adafactor(lr=1e-3), None, 32, allow=["offload"])
    shown = told.splitlines()
    assert shown[0] == str(plan).splitlines()[0] == "batches of 1: as it is"
    assert any(line.strip().startswith("offload") for line in shown)
    assert "parameters" in told


def test_a_folder_is_told_like_a_net(llama, sentence_model, capsys):
    assert "layers/1/attention" in out_of(capsys, "summary", llama)
    assert "sentence_embedding" in out_of(capsys, "summary", sentence_model)
