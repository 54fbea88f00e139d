"""``singanet finetune --head sequence-classification``: from a table to a classifier."""

import csv
import json

import numpy as np
import pytest

from singanet import pretrained
from singanet.__main__ import main
from singanet.checkpoint import open_state
from tests.commands.published import BERT, LLAMA, SIZES, published

WORDS = ("king", "queen", "ghost", "night", "sword", "crown")
ROYAL = {"king", "queen"}


def write_rows(path, count=160, seed=0, **columns):
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["number", "said", "kind", *columns])
        for k in range(count):
            words = rng.choice(WORDS, rng.integers(2, 7))
            kind = "royal" if ROYAL & {*words} else "plain"
            writer.writerow([k, " ".join(words), kind, *columns.values()])
    return path


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.csv")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    bert = BERT | {"architectures": ["BertForMaskedLM"], "initializer_range": 0.1}
    return {
        "llama": published(LLAMA, folder / "llama"),
        "bert": published(bert | SIZES, folder / "bert"),
    }


QUICK = ("--head", "sequence-classification", "--target", "kind", "--length", 48, "--lr", 0.01)


def done(folder, data, out, *options):
    argv = ["finetune", folder, "--data", data, "--out", out, *QUICK, "--quiet", *options]
    assert main([str(part) for part in argv]) == 0


@pytest.fixture(scope="module")
def tuned(models, rows, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    done(models["llama"], rows, out, "--epochs", 3)
    return out


def arrays(folder):
    with open_state(folder) as reader:
        return {name: reader.read(name) for name in reader.entries}


def figures(out):
    return json.loads((out / "figures.json").read_text())


@pytest.mark.few(2)
@pytest.mark.parametrize("method", [
    (), ("--method", "lora", "--rank", 4), ("--method", "blocks"), ("--memory-budget", "100MB"),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_classes_are_learnt_and_named(models, rows, tmp_path, kind, method):
    done(models[kind], rows, tmp_path / "run", "--epochs", 4, *method)
    assert figures(tmp_path / "run")["test_accuracy"] > (0.8 if kind == "llama" else 0.5)
    net = pretrained.load(tmp_path / "run/model")
    assert net.head == "sequence-classification"
    assert net.config["label2id"] == {"plain": 0, "royal": 1}
    base, made = arrays(models[kind]), arrays(tmp_path / "run/model")
    assert any(name.startswith(("score", "classifier")) for name in made)
    if "lora" in method:
        name = next(name for name in base if "embed" in name and name in made)
        np.testing.assert_array_equal(base[name], made[name])


@pytest.mark.full
def test_transformers_loads_it(tuned):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model, told = transformers.AutoModelForSequenceClassification.from_pretrained(
        tuned / "model", output_loading_info=True
    )
    assert not any(told.values())
    assert model.config.id2label == {0: "plain", 1: "royal"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(tuned / "model")
    x = tokenizer(["the king", "a ghost of the night"], return_tensors="pt", padding=True)
    x = {name: x[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        wanted = model(**x).logits.numpy()
    net = pretrained.load(tuned / "model", inputs=list(x))
    found = net.forward(False, {name: tensor.numpy() for name, tensor in x.items()})
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_predictions_have_the_names_of_classes(tuned, tmp_path, told):
    """Of the run, and of the folder of its model alone; labels are not needed."""
    more = tmp_path / "more.csv"
    more.write_text("said\nthe king and the queen\na ghost\n")
    lines = told("predict", tuned, "--data", more).splitlines()
    assert lines[0] == "sample,class,plain,royal"
    assert [line.split(",")[1] for line in lines[1:]] == ["royal", "plain"]
    others = told("predict", tuned / "model", "--data", more).splitlines()
    assert [line.split(",")[:2] for line in others] == [line.split(",")[:2] for line in lines]


def test_evaluations_are_of_the_rows_kept_back_or_of_others(tuned, rows, tmp_path, told):
    text = told("evaluate", tuned)
    assert float(text.split()[-1]) == pytest.approx(figures(tuned)["test_loss"], abs=1e-3)
    write_rows(tmp_path / "others.csv", seed=1)
    of_run = told("evaluate", tuned, "--data", tmp_path / "others.csv")
    of_folder = told("evaluate", tuned / "model", "--data", tmp_path / "others.csv",
                     "--target", "kind")  # fmt: skip
    assert of_run == of_folder
    assert float(of_run.split()[2]) > 0.8


@pytest.mark.full
def test_it_goes_on_to_the_bit(models, rows, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    done(models["bert"], rows, whole, "--epochs", 2)
    done(models["bert"], rows, parts, "--epochs", 2, "--keep", 2)
    for name in ("epoch-0002.npz", "best.npz", "figures.json"):
        (parts / name).unlink()
    assert main(["finetune", "--out", str(parts), "--resume", "--quiet"]) == 0
    ours, theirs = arrays(parts / "model"), arrays(whole / "model")
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_a_classifier_is_tuned_further_with_its_classes(tuned, tmp_path):
    """In the order of the model, and with its head; for other classes with a new one."""
    done(tuned / "model", write_rows(tmp_path / "a.csv", seed=2), tmp_path / "a", "--epochs", 1)
    assert figures(tmp_path / "a")["test_accuracy"] > 0.9


def test_the_column_of_texts_is_chosen(models, tmp_path, refused):
    data = write_rows(tmp_path / "a.csv", by="me and you", more="3")
    argv = ["finetune", models["bert"], "--data", data, "--out", tmp_path / "run", *QUICK]
    assert "one column of texts beside --target; received 'said', 'by'" in refused(*argv)
    assert "did you mean 'said'" in refused(*argv, "--text", "sad")
    done(models["bert"], data, tmp_path / "run", "--text", "said", "--epochs", 1)


@pytest.mark.parametrize(("rows_of", "options", "said"), [
    ("said,kind\na,x\n,y\n", (), r"line 3, column 'said'.*expected a text"),
    ("said,kind\na,x\nb,\n", (), r"line 3, column 'kind'.*expected a class"),
    ("said,kind\na,x\nb,x\n", (), "two or more classes; received 'x'"),
    ("said,kind\n" + "king " * 99 + ",x\nb,y\n", (), r"line 2: expected a text of at most 48"),
    ("said,sort\na,x\nb,y\n", (), "--target.*a column among 'said', 'sort'"),
    ("number,kind\n1,x\n2,y\n", (), "one column of texts beside --target; received none"),
    (None, ("--head", "token-classification"), "--head: expected 'sequence-classification'"),
    (None, ("--head", "classes"), "remove it to train a language model"),
    (None, ("--head", "sequence_classification"), "did you mean 'sequence-classification'"),
    ("said,kind\na,0.5\nb,1.5\nc,0.5\nd,1\n", (), "numbers with fractions, such as 0.5"),
    ("said,kind\na,x\n  ,y\n", (), r"line 3, column 'said'.*expected a text"),
    ("said,kind\n" + "king " * 99 + ",x\n" + "ghost " * 99 + ",y\n", ("--too-long", "skip"),
     "expected a text of at most 48 tokens; received longer ones alone"),
    (None, ("--method", "dpo"), "--head: expected --method full, lora or blocks"),
    (None, ("--prompt", "Say"), "--prompt: expected a language model"),
    (None, ("--data", "a.jsonl"), "--data: expected a table for --head"),
    (None, ("--length", "999"), "--length: expected 1 to 64"),
])  # fmt: skip
def test_what_is_refused(models, rows, tmp_path, refused, rows_of, options, said):
    import re

    data = rows
    if rows_of is not None:
        data = tmp_path / "a.csv"
        data.write_text(rows_of)
    out = tmp_path / "run"
    argv = ["finetune", models["llama"], "--data", data, "--out", out, *QUICK, *options]
    assert re.search(said, refused(*argv))
    assert not out.exists()


def test_the_classes_are_told(models, tmp_path, capsys):
    """Those that are numbers are whole, and a slip such as a space is seen."""
    rows = [("a ghost", 0.0), ("the king", 1.0)] * 4
    (tmp_path / "a.csv").write_text("said,kind\n" + "".join(f"{s},{k}\n" for s, k in rows))
    argv = ["finetune", models["bert"], "--data", tmp_path / "a.csv", "--out", tmp_path / "run"]
    quick = ["--head", "sequence-classification", "--target", "kind", "--length", 48]
    assert main([str(each) for each in (*argv, *quick, "--validation-split", 0)]) == 0
    assert "a.csv: texts of 'said', classes of 'kind': 0 (4), 1 (4)" in capsys.readouterr().err
    config = json.loads((tmp_path / "run/model/config.json").read_text())
    assert config["id2label"] == {"0": "0", "1": "1"}


def test_unknown_classes_are_refused(tuned, tmp_path, refused):
    (tmp_path / "a.csv").write_text("said,kind\na ghost,plain\nthe king,other\n")
    message = refused("evaluate", tuned, "--data", tmp_path / "a.csv")
    assert "line 3, column 'kind': expected a class of the model: 'plain', 'royal'" in message
