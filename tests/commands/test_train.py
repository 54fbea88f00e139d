"""``singanet train`` with a run folder, a configuration file, and signals."""

import csv
import io
import json
import re
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from singanet.__main__ import main
from singanet.base.files import NAME, hold, let_go
from singanet.commands.runs import run as run_module
from singanet.commands.runs.folder import saved_options
from singanet.commands.runs.optimizers import USUAL_RATES
from singanet.commands.runs.run import run
from singanet.commands.runs.run_options import OPTIONS, RunOptions
from singanet.commands.runs.tasks import Classification
from singanet.commands.runs.trained import trained
from singanet.errors import SingaNetError
from singanet.models import find
from singanet.report import read_run
from singanet.report.pages import write_page
from singanet.training.files import read_training
from tests.charts import HERE, NEEDED

RUN = [sys.executable, "-m", "singanet"]


def saved(folder):
    """The state in ``folder`` without what the clock decides."""
    state = read_training(folder)
    return {name: value for name, value in state.items() if not name.endswith("/figures")}


def assert_same(a, b):
    assert list(a) == list(b)
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name], err_msg=name)


def losses_of(folder, name="val_loss"):
    with (folder / "history.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file)]


def begun(*argv):
    """A process of its own session, so that a signal reaches nobody else."""
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([*RUN, *map(str, argv)], start_new_session=True, **pipes)


def test_a_run_folder_holds_all_of_the_run(small, tmp_path, capsys):
    out = tmp_path / "runs" / "first"
    argv = ["train", "mlp", "--data", small, "--epochs", "5", "--keep", "2", "--out", str(out)]
    assert main(argv) == 0
    names = {path.name for path in out.iterdir()}
    wanted = {"config.json", "history.csv", "layers.jsonl", "summary.txt", "figures.json"}
    assert wanted | {"best.npz", "memory.jsonl", "confusion.json", "net.svg"} <= names
    assert {n for n in names if n.startswith("epoch")} == {"epoch-0004.npz", "epoch-0005.npz"}
    options = json.loads((out / "config.json").read_text("utf-8"))["options"]
    assert (options["model"], options["epochs"], options["keep"]) == ("mlp", 5, 2)
    rows = list(csv.DictReader((out / "history.csv").read_text("utf-8").splitlines()))
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert list(rows[0]) == ["epoch", "loss", "accuracy", "val_loss", "val_accuracy", "lr"]
    # It rises to its highest in the first epoch, and falls along half a cosine to 0.
    rates = [float(row["lr"]) for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 0.9 * find("mlp").recipe.lr > 10 * rates[-1]
    figures = json.loads((out / "figures.json").read_text("utf-8"))
    assert f"test accuracy {figures['test_accuracy']:.4f}" in capsys.readouterr().out
    # A tenth of the 40 samples is kept back, and told apart by the net as it was in the end.
    confusion = np.array(json.loads((out / "confusion.json").read_text("utf-8"))["counts"])
    assert confusion.sum() == 4
    assert confusion.trace() / 4 == pytest.approx(float(rows[-1]["val_accuracy"]))


def test_test_data_decide_nothing_that_is_kept(small, tmp_path):
    with np.load(small) as data:
        arrays = dict(data)
    arrays["y_test"] = (arrays["y_test"] + 1) % 10
    np.savez(tmp_path / "other.npz", **arrays)
    figures = []
    for name, data in (("a", small), ("b", str(tmp_path / "other.npz"))):
        options = RunOptions("mlp", data, epochs=12, early_stopping=1, out=tmp_path / name, lr=0.2)
        figures.append(run(options).figures)
    assert figures[0]["test_accuracy"] != figures[1]["test_accuracy"]
    assert figures[0]["epochs"] == figures[1]["epochs"] < 12
    a, b = tmp_path / "a", tmp_path / "b"
    assert (a / "history.csv").read_bytes() == (b / "history.csv").read_bytes()
    with np.load(a / "best.npz") as best, np.load(b / "best.npz") as other:
        assert_same(dict(best), dict(other))


def test_what_is_kept_back_is_not_trained_on(small, tmp_path):
    with np.load(small) as data:
        arrays = dict(data)
    taken = Classification.load(small, find("mlp"))
    held = taken.data.x_train
    taken.keep_back(0.25, seed=3)
    is_held = np.array([not (x == taken.data.x_train).all(axis=(1, 2, 3)).any() for x in held])
    assert is_held.sum() == 10
    arrays["y_train"][is_held] = (arrays["y_train"][is_held] + 1) % 10
    np.savez(tmp_path / "other.npz", **arrays)
    a, b = tmp_path / "a", tmp_path / "b"
    for out, data in ((a, small), (b, str(tmp_path / "other.npz"))):
        run(RunOptions("mlp", data, epochs=2, seed=3, validation_split=0.25, out=out))
    states = [{k: v for k, v in saved(out).items() if k.startswith("net/")} for out in (a, b)]
    assert_same(*states)
    assert losses_of(a, "loss")[-1] == losses_of(b, "loss")[-1]
    assert losses_of(a)[-1] != losses_of(b)[-1]


def test_a_run_folder_changes_no_number_and_without_validation_has_no_best_weights(small, tmp_path):
    options = RunOptions("mlp", small, epochs=2, validation_split=0.2)
    plain, kept = (run(replace(options, out=out)).figures for out in (None, tmp_path / "a"))
    for key in ("train_loss", "test_loss", "test_accuracy"):
        assert plain[key] == kept[key]
    run(replace(options, validation_split=0.0, out=tmp_path / "run"))
    assert not list((tmp_path / "run").glob("best*"))
    header = (tmp_path / "run/history.csv").read_text("utf-8").splitlines()[0]
    assert header == "epoch,loss,accuracy,lr"


# lenet has dropout and images that are shifted at random, so that every draw counts.
@pytest.mark.parametrize("model", ["lenet", "autoencoder"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.full
def test_a_run_that_a_signal_ended_goes_on_to_the_bit(
    small, tmp_path, model, number, capsys, signals_at
):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    argv = ["train", model, "--data", small, "--epochs", "4", "--batch-size", "8"]
    assert main([*argv, "--out", str(whole)]) == 0
    signals_at(7, number)
    assert main([*argv, "--out", str(cut)]) == 128 + number
    assert (cut / "stopped.npz").exists()
    word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"singanet: {word}; resume with: singanet train --out {cut} --resume"
    assert main(["train", "--out", str(cut), "--resume"]) == 0
    assert_same(saved(whole), saved(cut))
    assert (whole / "history.csv").read_bytes() == (cut / "history.csv").read_bytes()


@pytest.mark.parametrize(("number", "word"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])  # fmt: skip
@pytest.mark.full
def test_a_process_that_is_told_to_end_saves_and_says_so(tmp_path, number, word):
    out = tmp_path / "run"
    process = begun("train", "mlp", "--epochs", "100000", "--out", out)
    try:
        assert process.stderr.readline().startswith("epoch 1/")
        process.send_signal(number)
        printed, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number
    assert printed == ""
    assert err.splitlines()[-1].startswith(f"singanet: {word}; resume with")
    assert "Traceback" not in err
    about = json.loads(bytes(read_training(out)["session"]))
    assert about["step"] > 0


def test_a_killed_process_goes_on_from_its_last_whole_checkpoint(small, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    argv = ["train", "lenet", "--data", small, "--epochs", "40", "--save-every", "1"]
    assert main([*argv, "--out", str(whole)]) == 0
    process = begun(*argv, "--out", cut)
    try:
        for _ in range(3):
            process.stderr.readline()
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    with (cut / "layers.jsonl").open("a") as file:
        file.write('{"epoch": 39, "parameters": {}}\n{"epoch": 3, "par')
    with (cut / "memory.jsonl").open("a") as file:
        file.write('{"seconds": 3, "epo')
    assert main(["train", "--out", str(cut), "--resume"]) == 0
    assert_same(saved(whole), saved(cut))
    assert (whole / "history.csv").read_bytes() == (cut / "history.csv").read_bytes()
    lines = [json.loads(line) for line in (cut / "layers.jsonl").read_text("utf-8").splitlines()]
    assert [line["epoch"] for line in lines] == list(range(40))
    assert read_run(cut).history.epochs == [*range(40)]


def test_more_epochs_go_on_from_a_finished_run(small, tmp_path, capsys):
    out = str(tmp_path / "run")
    assert main(["train", "mlp", "--data", small, "--epochs", "2", "--out", out]) == 0
    page = tmp_path / "run" / "report.html"
    page.write_text("of two epochs")
    assert main(["train", "--out", out, "--resume", "--epochs", "3"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert not page.exists()
    assert f"kept in {out}: epoch-0003.npz (newest of 3 states), best.npz" in told
    assert f"page: singanet report {out}" in told
    lines = [line for line in told if line.startswith("epoch ")]
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2", "epoch 3/3"]
    figures = json.loads((tmp_path / "run" / "figures.json").read_text("utf-8"))
    # A tenth of the 40 is kept back.
    assert figures["samples_per_second"] * figures["seconds"] == pytest.approx(3 * 36)


def test_a_run_that_has_no_checkpoint_yet_begins(small, tmp_path, capsys):
    out = tmp_path / "run"
    run(RunOptions("mlp", small, epochs=1, out=out))
    whole = (out / "epoch-0001.npz").read_bytes()
    (out / "epoch-0001.npz").unlink()
    capsys.readouterr()
    assert main(["train", "--out", str(out), "--resume"]) == 0
    assert f"no checkpoint in {out} yet" in capsys.readouterr().err
    with np.load(out / "epoch-0001.npz") as made, np.load(io.BytesIO(whole)) as first:
        for name in (n for n in first.files if n.startswith("net/")):
            np.testing.assert_array_equal(made[name], first[name])


def test_options_that_change_no_state_may_be_said_anew(small, tmp_path):
    out = tmp_path / "run"
    run(RunOptions("mlp", small, epochs=1, out=out))
    argv = ["train", "mlp", "--data", small, "--out", str(out), "--resume", "--epochs", "3"]
    assert main([*argv, "--optimizer", "sgd", "--early-stopping", "1", "--keep", "1"]) == 0


def test_a_diverged_run_saves_nothing_of_it(small, tmp_path, capsys):
    out = tmp_path / "run"
    argv = ["train", "mlp", "--data", small, "--lr", "1e30", "--epochs", "5", "--out", str(out)]
    assert main(argv) == 3
    assert "stays finite" in capsys.readouterr().err
    assert list(out.glob("stopped*")) == []


@pytest.mark.parametrize("rate", ["1e30", "1e25"])
def test_the_rate_that_is_advised_trains(rate, small, capsys):
    argv = ["train", "mlp", "--data", small, "--epochs", "1"]
    assert main([*argv, "--lr", rate]) == 3
    said = capsys.readouterr().err
    assert "warning" not in said  # one message, not two
    assert main([*argv, *re.search(r"--lr [\d.e+-]+$", said.strip())[0].split()]) == 0


@pytest.mark.parametrize("optimizer", USUAL_RATES)
@pytest.mark.full
def test_every_optimizer_learns(optimizer, tmp_path):
    options = {"epochs": 4, "accumulate": 2 if optimizer.startswith("accumulating") else 1}
    figures = run(RunOptions("mlp", "digits", optimizer=optimizer, **options)).figures
    assert figures["test_accuracy"] > 0.6  # by chance: 0.1


def test_folding_micro_batches_is_accumulating_them(small):
    given = {"lr": 0.05, "weight_decay": 0.0, "accumulate": 4, "seed": 1}
    folded, added = (
        run(RunOptions("mlp", small, 2, 5, name, **given)).figures["test_loss"]
        for name in ("accumulating_sgd", "sgd")
    )
    assert folded == pytest.approx(added, rel=1e-4)


@pytest.mark.parametrize("extra", [
    {"clip": 0.01}, {"clip": 0.001, "clip_by": "value"}, {"clip": 0.01, "clip_by": "global"},
    {"accumulate": 2}, {"weight_decay": 0.5}, {"class_weight": {0: 9.0}}, {"shuffle": False},
    {"drop_last": True}, {"steps_per_epoch": 1}, {"initial_epoch": 1},
    {"mixed_precision": "float16"}, {"validation_split": 0.2}, {"lr": 0.001}, {"batch_size": 8},
    {"optimizer": "adam"},
])  # fmt: skip
def test_an_option_changes_the_run(small, extra):
    plain = run(RunOptions("mlp", small, epochs=2)).figures["test_loss"]
    assert run(RunOptions("mlp", small, epochs=2, **extra)).figures["test_loss"] != plain


def test_a_file_says_what_the_command_line_does_not(small, tmp_path, capsys):
    config, figures = tmp_path / "run.toml", tmp_path / "figures.json"
    config.write_text(
        f'model = "mlp"\ndata = {json.dumps(small)}\nepochs = 3\nbatch-size = 8\nlr = 1e-2\n'
        f"json = {json.dumps(str(figures))}\n"
    )
    assert main(["train", "--config", str(config), "--epochs", "2"]) == 0
    *epochs, _ = capsys.readouterr().err.splitlines()
    assert len(epochs) == 2
    same = run(RunOptions("mlp", small, epochs=2, batch_size=8, lr=0.01)).figures
    assert json.loads(figures.read_text("utf-8"))["test_loss"] == same["test_loss"]


def test_every_option_has_its_key(small, tmp_path):
    """A file that says them all does what the command line does with them all."""
    said = {
        "epochs": 4, "batch-size": 5, "optimizer": "adam", "lr": 0.01, "weight-decay": 0.1,
        "clip": 0.5, "clip-by": "global", "accumulate": 2, "seed": 3, "validation-split": 0.25,
        "early-stopping": 3, "monitor": "val_accuracy", "steps-per-epoch": 4, "initial-epoch": 1,
        "mixed-precision": "float16", "keep": 2, "save-every": 3, "parallel": "half",
    }  # fmt: skip
    argv = [part for key, value in said.items() for part in (f"--{key}", str(value))]
    argv += ["--class-weight", "0=2,3=0.5", "--no-shuffle", "--drop-last", "--quiet"]
    out = tmp_path / "line"
    assert main(["train", "mlp", "--data", small, *argv, "--out", str(out)]) == 0
    config = tmp_path / "run.toml"
    config.write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in said.items())
        + f'model = "mlp"\ndata = {json.dumps(small)}\nshuffle = false\nquiet = true\n'
        + "drop-last = true\n"
        + f"out = {json.dumps(str(tmp_path / 'file'))}\nclass-weight = {{ 0 = 2, 3 = 0.5 }}\n"
    )
    assert main(["train", "--config", str(config)]) == 0
    assert_same(saved(out), saved(tmp_path / "file"))
    # All that RunOptions has was said, but for a budget, which is refused beside mixed precision,
    # and what other ways of several processes have.
    names = {option.flag for option in OPTIONS.values()}
    assert names - {*said} == {
        *("model", "from", "data", "out", "resume", "json", "class-weight", "shuffle", "quiet"),
        *("target", "leave-out", "min-count"),
        "live",
        *("drop-last", "tensorboard", "memory-budget", "offload-folder", "ratio", "every"),
        # Those of published models.
        *("validation", "length", "pack", "too-long", "prompt", "method", "rank"),
        *("beta", "head", "text"),
    }


def test_a_run_with_every_option_goes_on_to_the_bit(small, tmp_path, signals_at):
    argv = ["train", "lenet", "--data", small, "--epochs", "4", "--batch-size", "5"]
    argv += ["--accumulate", "2", "--class-weight", "0=2,3=0.5", "--mixed-precision", "float16"]
    argv += ["--clip", "0.3", "--clip-by", "global", "--early-stopping", "9", "--quiet"]
    argv += ["--monitor", "val_accuracy", "--validation-split", "0.2", "--steps-per-epoch", "5"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main([*argv, "--out", str(whole)]) == 0
    signals_at(8)
    assert main([*argv, "--out", str(cut)]) == 130
    assert str(read_training(cut)["net/fc1/weight"].dtype) == "float16"
    assert main(["train", "--out", str(cut), "--resume"]) == 0
    assert_same(saved(whole), saved(cut))
    assert (whole / "best.npz").read_bytes() == (cut / "best.npz").read_bytes()
    again = saved_options(cut)
    assert {int(k): v for k, v in again["class_weight"].items()} == {0: 2.0, 3: 0.5}
    assert main(["evaluate", str(cut), "--best"]) == 0


def test_early_stopping_ends_and_tests_the_best_weights(small, tmp_path):
    out = tmp_path / "run"
    argv = ["train", "mlp", "--data", small, "--epochs", "40", "--early-stopping", "2"]
    assert main([*argv, "--lr", "0.5", "--out", str(out)]) == 0
    losses = losses_of(out)
    assert len(losses) < 40
    assert min(losses) not in losses[-2:]
    figures = json.loads((out / "figures.json").read_text("utf-8"))
    net, task = trained(out, best=True)
    assert net.evaluate(task.test_batches())[0] == pytest.approx(figures["test_loss"])
    if not HERE:
        return
    assert main(["report", str(out)]) == 0
    page = (out / "report.html").read_text("utf-8")
    best = losses.index(min(losses)) + 1
    cells = rf"best by val_loss</th><td>{best}</td>.*?>last</th><td>{len(losses)}</td>"
    assert re.search(cells, page)
    assert f"{len(losses)} epochs of 40; stopped: val_loss has not improved on" in page


@NEEDED
def test_a_live_page_ends_with_the_figures(small, tmp_path, monkeypatch, refused):
    run = tmp_path / "run"
    pages = []

    def seen(path, html):
        pages.append(html)
        write_page(path, html)

    monkeypatch.setattr("singanet.report.pages.write_page", seen)
    argv = ["train", "mlp", "--data", small, "--epochs", "2", "--quiet"]
    assert main([*argv, "--out", str(run), "--live"]) == 0
    *before, _ = pages
    assert len(before) >= 2  # after the first step, and before the test
    assert all('http-equiv="refresh"' in html for html in before)
    last = (run / "report.html").read_text("utf-8")
    assert "refresh" not in last
    assert "test accuracy" in last
    assert "live" not in saved_options(run)
    assert "--live: expected a run folder" in refused(*argv, "--live")
    # A second run is refused, and nothing of the first is touched.
    (run / "report.html").write_text("mine")
    assert "add --resume" in refused(*argv, "--out", run, "--live")
    assert (run / "report.html").read_text("utf-8") == "mine"


def test_options_of_another_folder_are_refused(tmp_path, refused):
    (tmp_path / "config.json").write_text('{"epochs": 3}')
    with pytest.raises(SingaNetError, match="singanet train wrote"):
        saved_options(tmp_path)


def test_a_folder_with_a_training_under_way_is_refused_by_the_name_of_its_process(
    small, tmp_path, refused
):
    out = tmp_path / "run"
    argv = ["train", "mlp", "--data", small, "--epochs", "100000", "--out", str(out)]
    process = begun(*argv)
    try:
        for _ in range(2):
            assert process.stderr.readline().startswith("epoch")
        before = (out / "config.json").read_bytes()
        said = refused("train", "--out", out, "--resume", "--quiet")
        assert f"no other training in it; received a training of process {process.pid} on" in said
        assert "with config.json" in refused(*argv)
        assert (out / "config.json").read_bytes() == before
    finally:
        process.kill()
        process.communicate()
    # What a killed process leaves of its lock stops nobody.
    steps = ["--epochs", "100000", "--steps-per-epoch", "1", "--early-stopping", "0", "--quiet"]
    assert main(["train", "--out", str(out), "--resume", *steps]) == 0


def test_a_run_that_another_began_meanwhile_is_not_written_over(small, tmp_path, monkeypatch):
    """Both saw an empty folder; the second comes to its first step when the first has ended."""
    where = "singanet.commands.runs.run.expect_no_run"
    out, look = tmp_path / "run", run_module.expect_no_run
    options = RunOptions("mlp", small, epochs=1, out=out)

    def late(folder):
        look(folder)
        monkeypatch.setattr(where, look)
        run(options)

    monkeypatch.setattr(where, late)
    refusal = r"a folder without a run; received a folder with config\.json"
    with pytest.raises(SingaNetError, match=refusal):
        run(replace(options, lr=0.5))
    assert json.loads((out / "config.json").read_text("utf-8"))["options"]["lr"] is None
    assert json.loads((out / "outcome.json").read_text("utf-8"))["error"] is None


@pytest.mark.parametrize("name", ["layers.jsonl", "epoch-0001.npz", "config.json", "best.npz"])
def test_a_run_folder_of_a_strangers_leads_nowhere_else(small, tmp_path, name, refused):
    out, victim = tmp_path / "run", tmp_path / "victim"
    run(RunOptions("mlp", small, epochs=1, out=out))
    (out / name).rename(victim)
    (out / name).symlink_to(victim)
    before = victim.read_bytes()
    assert "received a link to" in refused("train", "--out", out, "--resume", "--epochs", "3")
    assert victim.read_bytes() == before


def test_a_folder_is_looked_at_before_it_is_read(small, tmp_path, monkeypatch, refused):
    out = tmp_path / "run"
    argv = ["train", "mlp", "--data", small, "--epochs", "1", "--out", str(out), "--quiet"]
    assert main(argv) == 0
    (out / NAME).touch()
    hold(out, "another", "another")
    monkeypatch.setattr("singanet.commands.runs.run.has_state", lambda folder: 1 / 0)
    try:
        assert "no other training in it" in refused("train", "--out", out, "--resume", "--quiet")
    finally:
        let_go(out, "another")


def test_an_event_file_for_tensorboard(small, tmp_path):
    pytest.importorskip("tensorboardX")
    folder, out = tmp_path / "events", tmp_path / "run"
    argv = ["train", "mlp", "--data", small, "--epochs", "1", "--tensorboard", str(folder)]
    assert main([*argv, "--batch-size", "8", "--save-every", "2", "--out", str(out)]) == 0
    assert json.loads(bytes(read_training(out / "step.npz")["session"]))["step"] == 4
    (written,) = folder.glob("events*")
    written.unlink()
    assert main(["train", "--out", str(out), "--resume", "--epochs", "2"]) == 0
    assert len(list(folder.glob("events*"))) == 1
