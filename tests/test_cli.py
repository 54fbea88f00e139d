"""The command line: what it prints, writes and refuses, and with which exit status."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest

import singanet
from singanet.__main__ import main
from singanet.commands import make_parser
from singanet.commands.runs.run_options import GROUPS, OPTIONS
from singanet.data import digits
from singanet.models import entries
from tests.terminals import pseudo_terminal

RUN = [sys.executable, "-m", "singanet"]
KEYS = [
    "model",
    "data",
    "epochs",
    "train_loss",
    "test_loss",
    "test_accuracy",
    "seconds",
    "samples_per_second",
    "peak_gradient_bytes",
    "parameter_bytes",
]


@pytest.fixture
def small(tmp_path):
    """An .npz file of 40 digits to train on and 20 to test on."""
    data = digits()
    path = tmp_path / "small.npz"
    np.savez(
        path,
        x_train=data.x_train[:40],
        y_train=data.y_train[:40],
        x_test=data.x_test[:20],
        y_test=data.y_test[:20],
    )
    return path


def rewritten(path, **arrays):
    """``path`` with ``arrays`` in place of those of the same name."""
    with np.load(path) as archive:
        kept = dict(archive)
    np.savez(path, **{**kept, **arrays})
    return path


def refused(capsys, *argv):
    """The one line on standard error of a command that exits with status 2."""
    try:
        status = main([str(part) for part in argv])
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("singanet")
    assert "Traceback" not in err
    return err


def test_training_prints_a_line_an_epoch_and_the_test_accuracy_last(small, capsys):
    assert main(["train", "mlp", "--data", str(small), "--epochs", "2"]) == 0
    out, err = capsys.readouterr()
    *lines, kept = err.splitlines()
    assert kept.startswith("nothing was kept")
    pattern = r"epoch {}/2  loss \d+\.\d{{4}}  accuracy [01]\.\d{{4}}  [\d,]+ samples/s"
    assert len(lines) == 2
    for number, line in enumerate(lines, start=1):
        assert re.fullmatch(pattern.format(number), line)
    last = r"test accuracy [01]\.\d{4}  test loss \d+\.\d{4}  \d+\.\d s"
    assert re.fullmatch(last, out.splitlines()[-1])


def test_the_figures_have_the_promised_keys_and_are_right(small, tmp_path, capsys):
    target = tmp_path / "figures.json"
    argv = ["train", "mlp", "--data", str(small), "--epochs", "3", "--json", str(target)]
    assert main(argv) == 0
    figures = json.loads(target.read_text("utf-8"))
    assert list(figures) == KEYS
    assert figures["model"] == "mlp"
    assert figures["data"] == str(small)
    assert figures["epochs"] == 3
    # 64-256-128-10: the largest layer's gradient is the second's.
    sizes = [65 * 256, 257 * 128, 129 * 10]
    assert figures["parameter_bytes"] == 4 * sum(sizes)
    assert figures["peak_gradient_bytes"] == 4 * max(sizes)
    assert figures["samples_per_second"] == pytest.approx(3 * 40 / figures["seconds"])
    printed = re.search(r"accuracy (\S+)  test loss (\S+)", capsys.readouterr().out)
    assert float(printed[1]) == pytest.approx(figures["test_accuracy"], abs=5e-5)
    assert float(printed[2]) == pytest.approx(figures["test_loss"], abs=5e-5)
    assert [path.name for path in tmp_path.glob("*.part")] == []


def test_the_same_seed_gives_the_same_numbers_in_two_processes(small, tmp_path):
    results = []
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        target = tmp_path / f"{name}.json"
        argv = ["train", "lenet", "--data", str(small), "--epochs", "2", "--seed", seed]
        if name == "a":
            subprocess.run([*RUN, *argv, "--json", str(target)], check=True, capture_output=True)
        else:
            assert main([*argv, "--json", str(target)]) == 0
        figures = json.loads(target.read_text("utf-8"))
        results.append([figures[key] for key in ("train_loss", "test_loss", "test_accuracy")])
    assert results[0] == results[1]
    assert results[0] != results[2]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_every_option_is_taken(small, optimizer, capsys):
    options = ["--epochs", "1", "--batch-size", "7", "--lr", "0.01", "--seed", "5"]
    argv = ["train", "mlp", "--data", str(small), *options, "--optimizer", optimizer]
    assert main(argv) == 0
    assert "test accuracy" in capsys.readouterr().out


def test_an_option_changes_the_run(small, tmp_path):
    losses = set()
    for extra in ([], ["--lr", "0.001"], ["--batch-size", "8"], ["--optimizer", "adam"]):
        target = tmp_path / "figures.json"
        argv = ["train", "mlp", "--data", str(small), "--epochs", "1", "--json", str(target)]
        assert main([*argv, *extra]) == 0
        losses.add(json.loads(target.read_text("utf-8"))["test_loss"])
    assert len(losses) == 4


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["train", "lent", "--data", "digits"], "did you mean 'lenet'"),
        (["train", "mlp", "--data", "digts"], "did you mean 'digits'"),
        (["train", "mlp", "--data", "nowhere.npz"], "no such file"),
        (["train", "mlp", "--optimizer", "sdg"], "did you mean 'sgd'"),
        (["train", "mlp", "--epochs", "0"], "--epochs: expected a positive number"),
        (["train", "mlp", "--epochs", "many"], "invalid int value"),
        (["train", "mlp", "--batch-size", "-1"], "--batch-size: expected a positive number"),
        (["train", "mlp", "--lr", "nan"], "--lr: expected a positive number"),
        (["train", "mlp", "--lr", "0"], "--lr: expected a positive number"),
        (["train", "mlp", "--seed", "-1"], "--seed: expected 0 or more"),
        (["train", "mlp", "--json", "no/such/folder/x.json"], "--json"),
        (["train", "mlp", "--json", "."], "a folder"),
        (["train", "mlp", "--epoch-count", "3"], "unrecognized arguments"),
        (["train"], "required: MODEL"),
        (["trian"], "singanet: unknown command 'trian'; did you mean 'train'?"),
        (["zzz"], "choose 'train', 'finetune', 'launch'"),
        (["summary", "resnet-none"], "model 'resnet-none'"),
        (["summary", "lenet", "--input-shape", "1,x"], "expected ints such as"),
        (["summary", "lenet", "--input-shape", "0,8,8"], "positive ints"),
        (["summary", "lenet", "--classes", "0"], "num_classes: expected an int"),
        (["summary", "lenet", "--input-shape", "8"], "sample shape"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(argv, said, capsys):
    assert said in refused(capsys, *argv)


def test_a_nan_in_the_data_is_refused_with_its_place(small, capsys):
    x = np.zeros((40, 1, 8, 8), np.float32)
    x[3, 0, 2, 1] = np.nan
    rewritten(small, x_train=x)
    said = refused(capsys, "train", "mlp", "--data", small)
    assert "x_train" in said
    assert "nan" in said
    assert "3" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"just some text, in truth", "text that begins"),
        (b"", "an empty file"),
        (b"PK\x03\x04" + bytes(40), "a broken archive"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path, content, said, capsys):
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    assert said in refused(capsys, "train", "mlp", "--data", path)


def test_labels_out_of_range_are_refused(small, capsys):
    rewritten(small, y_test=np.full(20, 12))
    assert "y_test" in refused(capsys, "train", "mlp", "--data", small)


def test_a_loss_that_is_no_longer_finite_is_an_error_in_words(small, tmp_path, capsys):
    target = tmp_path / "figures.json"
    argv = ["train", "mlp", "--data", str(small), "--lr", "1e30", "--epochs", "5"]
    assert main([*argv, "--json", str(target)]) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert "--lr: expected a learning rate at which the loss stays finite" in last
    assert not target.exists()


def test_a_mistake_in_a_process_of_its_own_has_status_2_and_no_traceback():
    done = subprocess.run([*RUN, "train", "nothing"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


def test_an_interrupt_ends_with_status_130():
    # Its own session, so that the signal reaches nobody else.
    process = subprocess.Popen(
        [*RUN, "train", "mlp", "--epochs", "100000"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr.readline().startswith("epoch 1/")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert err.splitlines()[-1] == "singanet: interrupted"
    assert "Traceback" not in err


def test_a_reader_that_has_gone_is_no_error():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*RUN, "models"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.name != "posix", reason="closes the output with a POSIX shell")
def test_a_closed_output_is_no_error():
    command = ["sh", "-c", '"$@" >&-', "sh", *RUN, "models"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.few(1)
@pytest.mark.parametrize("columns", [120, 80, 0])
def test_on_a_terminal_there_is_a_bar_with_loss_metric_and_rate(small, columns):
    argv = ["train", "mlp", "--data", str(small), "--epochs", "2", "--batch-size", "1"]
    argv += ["--validation-split", "0.5"]
    with pseudo_terminal(columns) as terminal:
        command = [*RUN, *argv]
        subprocess.run(command, stderr=terminal.stream, stdout=subprocess.DEVNULL, check=True)
    width = columns or 80
    number, speed = r"\d+\.\d{4}", r"[\d,]+ samples/s"
    measures = rf"loss {number}  accuracy {number}  val_loss {number}  val_accuracy {number}"
    if width == 80:
        measures = rf"loss {number} val {number}  accuracy {number} val {number}"
    assert max(map(len, terminal.frames)) <= width
    lines = "\n".join(terminal.lines[:-1])
    assert re.fullmatch("\n".join(f"epoch {k}/2  {measures}  {speed}" for k in (1, 2)), lines)
    bars = re.findall(r"\repoch 1/2 \d+/20 \|(.*?)\|([^\r]*)", terminal.shown)
    assert bars
    assert all(len(bar) > 5 for bar, _ in bars)
    assert all(re.search(r"loss \d+\.\d{4} .*samples/s \d", rest) for _, rest in bars[1:])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["train", "mlp", "--epochz", "3"], "arguments: --epochz 3; did you mean '--epochs'?"),
        (["train", "mlp", "--batch_size=3"], "'--batch-size'?; see singanet train --help"),
        (["models", "x"], "singanet models: unrecognized arguments: x; see"),
    ],
)  # fmt: skip
def test_an_option_that_a_command_lacks_is_refused_by_it(argv, said, capsys):
    with pytest.raises(SystemExit) as left:
        main(argv)
    assert left.value.code == 2
    assert said in capsys.readouterr().err


def test_a_file_that_describes_no_net_is_no_ready_net_misspelt(tmp_path, capsys):
    np.savez(tmp_path / "w.npz", a=np.ones(2))
    assert main(["summary", str(tmp_path / "w.npz")]) == 2
    said = capsys.readouterr().err
    assert "w.npz': expected a ready net, a run folder" in said
    assert "'lenet'" not in said


def test_models_lists_each_with_its_parameters_and_a_description(capsys):
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == len(entries())
    for line, entry in zip(lines, entries(), strict=True):
        assert re.fullmatch(rf"{entry.name} +{entry.parameters:,}  {entry.description}", line)


def test_a_ready_net_is_found_beside_a_file_of_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lenet").write_bytes(b"")
    assert main(["summary", "lenet"]) == 0
    assert main(["summary", "./lenet"]) == 2
    assert "another file" in capsys.readouterr().err


def test_summary_shows_layers_shapes_and_the_count_of_parameters(capsys):
    assert main(["summary", "lenet", "--input-shape", "1,8,8", "--classes", "7"]) == 0
    out = capsys.readouterr().out
    sizes = [32 * 26, 64 * (32 * 25 + 1), (64 * 2 * 2 + 1) * 256, 257 * 7]
    assert f"{sum(sizes):,} parameters" in out
    assert re.search(r"^conv2 +Conv2D +\(64, 4, 4\)", out, re.M)


def test_devices_lists_the_kernels(capsys):
    assert main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["cpu", "numpy"],
        ["cpu", "llvm"],
        ["cpu", "onednn"],
        ["cuda", "cupy"],
    ]


def test_an_output_that_takes_nothing_more_is_one_line():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run([*RUN, "models"], stdout=full, stderr=subprocess.PIPE, text=True)
    said = "singanet: No space left on device: writing to standard output\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_the_package_is_the_command(capsys):
    command = [sys.executable, "-m", "singanet", "--version"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"singanet {singanet.__version__}\n")


def test_a_warning_is_one_line_without_a_place(monkeypatch, capsys):
    from singanet.commands import looking_commands

    def models():
        warnings.warn("something odd", stacklevel=2)
        return 0

    monkeypatch.setattr(looking_commands, "models", models)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["models"]) == 0
    assert capsys.readouterr().err == "singanet: warning: something odd\n"


@pytest.mark.parametrize("argv", [[], ["--help"]])
def test_help_names_the_commands_by_family(argv, capsys):
    """Also without an argument, which was an error."""
    status = 0
    with contextlib.suppress(SystemExit):  # of argparse, after its help
        status = main(argv)
    assert status == 0
    out = capsys.readouterr().out.partition("\noptions:")[0]
    families = re.findall(r"^(\w[\w ]+):\n((?:  .+\n)+)", out, re.M)
    listed = [name for _, lines in families for name in re.findall(r"^  (\w+) ", lines, re.M)]
    assert listed == [*make_parser().commands]
    assert [name for name, _ in families][:2] == ["train", "use a trained net"]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_helps_fit_the_terminal_and_say_what_each_option_is(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    root = make_parser()
    for name, parser in root.commands.items():
        text, _, examples = parser.format_help().partition("\nexamples:\n")
        assert text.startswith(f"usage: singanet {name} ")
        assert max(map(len, text.splitlines()[1:])) < min(columns, 100)
        assert [action.dest for action in parser._actions if not action.help] == []
        for line in filter(None, examples.splitlines()):
            words = shlex.split(line.replace('"$(', "").replace(')"', "").removeprefix("  eval"))
            assert words[0] == "singanet"
            root.parse_args(words[1 : words.index("|") if "|" in words else None])
        assert examples


def test_helps_show_defaults_and_groups():
    commands = make_parser().commands
    text = " ".join(commands["train"].format_help().split())
    for said in (
        "--keep N epochs whose checkpoints are kept (default: 3)",
        "--clip-by HOW bound the norm of a layer, global (of all), running, or each value"
        " (default: layer)",
        "--epochs N passes over the data (default: the net's recipe)",
    ):
        assert said in text
    assert "seconds of each round (default: 1)" in commands["bench"].format_help()
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(OPTIONS)
    titles = re.findall(r"^(\w[\w ]+):$", commands["train"].format_help(), re.M)
    assert titles == [*GROUPS, "options", "examples"]
