"""The command line itself: what it prints, loads and completes, and its exit status."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import warnings

import pytest

import singanet
from singanet.__main__ import main
from singanet.commands import make_parser
from singanet.commands.runs.run_options import GROUPS, OPTIONS
from singanet.models import entries
from tests.terminals import pseudo_terminal

RUN = [sys.executable, "-m", "singanet"]


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
    sizes = "samples_per_second peak_gradient_bytes parameter_bytes"
    losses = "train_loss test_loss test_accuracy seconds"
    assert " ".join(figures) == f"model data epochs {losses} {sizes}"
    assert (figures["model"], figures["data"], figures["epochs"]) == ("mlp", str(small), 3)
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
        argv += ["--json", str(target)]
        assert (ran(*argv)[0] if name == "a" else main(argv)) == 0
        figures = json.loads(target.read_text("utf-8"))
        results.append([figures[key] for key in ("train_loss", "test_loss", "test_accuracy")])
    assert results[0] == results[1]
    assert results[0] != results[2]


def test_a_loss_that_is_no_longer_finite_is_an_error_in_words(small, tmp_path, capsys):
    target = tmp_path / "figures.json"
    argv = ["train", "mlp", "--data", str(small), "--lr", "1e30", "--epochs", "5"]
    assert main([*argv, "--json", str(target)]) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert "--lr: expected a learning rate at which the loss stays finite" in last
    assert not target.exists()


def ran(*argv, output=subprocess.PIPE, before=()):
    """The status of the command in a process of its own, and what it says and prints."""
    command = [*before, *RUN, *argv]
    done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr, done.stdout


def test_the_package_is_the_command_and_a_mistake_has_status_2_and_no_traceback():
    assert ran("--version") == (0, "", f"singanet {singanet.__version__}\n")
    status, said, printed = ran("train", "nothing")
    assert (status, said.count("\n"), printed) == (2, 1, "")


@pytest.mark.skipif(os.name != "posix", reason="closes the output with a POSIX shell")
def test_an_output_that_is_closed_is_no_error_and_a_full_one_is_told():
    read, write = os.pipe()
    os.close(read)  # a reader that has gone
    assert ran("models", output=write) == (0, "", None)
    os.close(write)
    assert ran("models", before=["sh", "-c", '"$@" >&-', "sh"])[:2] == (0, "")
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            said = "singanet: No space left on device: writing to standard output\n"
            assert ran("models", output=full) == (2, said, None)


def test_an_interrupt_ends_with_status_130():
    # Its own session, so that the signal reaches nobody else.
    process = subprocess.Popen(
        [*RUN, "train", "mlp", "--epochs", "100000"], stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, start_new_session=True
    )  # fmt: skip
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
    kernels = [" ".join(line.split()[:2]) for line in lines]
    assert kernels == ["cpu numpy", "cpu llvm", "cpu onednn", "cuda cupy"]


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


@pytest.mark.parametrize("argv",
    [["--help"], ["models"], ["train", "--help"], ["launch", "--help"]])  # fmt: skip
def test_nothing_is_imported_that_is_not_needed(argv):
    code = (
        "import sys\nfrom singanet.__main__ import main\n"
        f"try:\n    main({argv!r})\nexcept SystemExit:\n    pass\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stderr.split()
    heavy = ("training", "parallel", "launch", "checkpoint", "report")
    heavy = (*(f"singanet.{room}" for room in heavy), "h5py", "tqdm")
    # The options of a fit are the arguments of net.fit.
    light = ("singanet.training", "singanet.training.options")
    assert [name for name in loaded if name.startswith(heavy) and name not in light] == []
    assert "singanet.commands.training_commands" in loaded


def script(shell, capsys):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def shell(name):
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with some files and a folder of runs."""
    monkeypatch.chdir(tmp_path)
    for name in ("weights.npz", "a.npz", "a.txt"):
        (tmp_path / name).touch()
    (tmp_path / "runs").mkdir()


WIDE = {entry.name for entry in entries() if entry.name.startswith("wide")}
OFFERED = {
    "": {*make_parser().commands}, "eva": {"evaluate"}, "train wide": WIDE,
    "train lenet --batch": {"--batch-size"}, "completion f": {"fish"},
    "launch -n 4 trai": {"train"},
    "train lenet --optimizer adam": {"adam", "adamw", "adamax"},
    "train --parallel all": {"allreduce"},
    "train --clip-by ": {"global", "layer", "running", "value"},
    # Files where a path is wanted.
    **{f"{words} wei": {"weights.npz"}
       for words in ("inspect", "evaluate", "train mlp --data", "summary", "bench")},
    **{words: set() for words in ("inspect no-such", "launch --elastic wei")},
    "train --out ": {"runs"}, "train --data di": {"digits"}, "train --data a": {"a.npz", "a.txt"},
    "predict runs --out ": {"weights.npz", "a.npz", "runs"}, "generate r": {"runs"},
    "train --mixed-precision b": {"bfloat16"}, "finetune runs --method l": {"lora"},
    "convert a b --format safe": {"safetensors"},
}  # fmt: skip


def test_bash_offers_commands_models_options_their_values_and_files(capsys, folder):
    asked = [script("bash", capsys)]
    for line in OFFERED:
        words = ["singanet", *line.split(" ")]
        quoted = " ".join(f"'{word}'" for word in words)
        asked.append(f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _shtab_singanet")
        asked.append('echo "${COMPREPLY[@]}"')
    command = [shell("bash"), "--norc", "-c", "\n".join(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    found = [line.split() for line in done.stdout.splitlines()]
    assert {line: {*words} for line, words in zip(OFFERED, found, strict=True)} == OFFERED
    assert all(len(words) == len({*words}) for words in found)


def test_fish_offers_what_an_option_takes(capsys, folder):
    text = script("fish", capsys)
    for line, offered in (
        ("singanet train --data di", ["digits"]), ("singanet train --data wei", ["weights.npz"]),
        ("singanet train --out ", ["runs/"]), ("singanet summary resnet2", ["resnet20"]),
    ):  # fmt: skip
        command = [shell("fish"), "-c", f"{text}\ncomplete -C '{line}'"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert [each.partition("\t")[0] for each in done.stdout.splitlines()] == offered


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_look_for_paths_beside_names(name, capsys):
    text = script(name, capsys)
    paths = {
        "zsh": ("'paths:path:_files'", "RUN_DIR:_files -/", "_alternative 'names:name:(digits "),
        "fish": ("movielens clicks (__fish_complete_path", '"(__fish_complete_directories)"'),
    }[name]
    assert all(each in text for each in paths)
    assert "file?" not in text


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_take_their_script(name, capsys, tmp_path):
    text = script(name, capsys)
    told = (*make_parser().commands, "adafactor", "resnet20", "save-every")
    assert all(word in text for word in told)
    (tmp_path / "script").write_text(text)
    subprocess.run([shell(name), "-n", str(tmp_path / "script")], check=True)


def test_without_shtab_it_is_refused_by_name(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    said = refused("completion", "bash")
    assert "expected the package shtab" in said
    assert "pip install shtab" in said
