"""What the commands refuse: each in one line with status 2, before anything is written or run."""

import re
import shlex

import numpy as np
import pytest

from singanet.data import digits
from singanet.parallel.launch import job

# {small} is a data set, {run} a run folder, {out} a folder that is not there, {there} an empty one,
# {data} files as below, {llama} and {bert} published models, {chats} and {play} texts.
COMMANDS = {
    "train lent --data digits": "did you mean 'lenet'",
    "train mlp --data digts": "did you mean 'digits'",
    "train mlp --data nowhere.npz": "no such file",
    "train mlp --data {there}/text.npz": "text that begins",
    "train mlp --data {there}/empty.npz": "an empty file",
    "train mlp --data {there}/broken.npz": "a broken archive",
    "train mlp --data {there}/nan.npz": r"x_train.*1 NaN .*\(3, 0, 2, 1\)",
    "train mlp --data {there}/labels.npz": "y_test",
    "train mlp --optimizer sdg": "did you mean 'sgd'",
    "train mlp --epochs 0": "--epochs: expected a positive number",
    "train mlp --epochs many": "invalid int value",
    "train mlp --batch-size -1": "--batch-size: expected a positive number",
    "train mlp --lr nan": "--lr: expected a positive number",
    "train mlp --lr 0": "--lr: expected a positive number",
    "train mlp --seed -1": "--seed: expected 0 or more",
    "train mlp --json no/such/folder/x.json": "--json", "train mlp --json .": "a folder",
    "train mlp --epochz 3": "arguments: --epochz 3; did you mean '--epochs'?",
    "train mlp --batch_size=3": "'--batch-size'?; see singanet train --help",
    "train": "required: MODEL.*or --from FILE", "train --data {small}": "or --from FILE",
    "train mlp --data {small} --clip 0": "--clip: expected a positive number",
    "train mlp --data {small} --clip 1 --clip-by layr": "did you mean 'layer'",
    "train mlp --data {small} --accumulate 0": "--accumulate: expected a positive number",
    "train mlp --data {small} --accumulate 41 --epochs 20": "at most 40, the batches of the whole",
    "train mlp --data {small} --out " + "a" * 300: "File name too long",
    "train mlp --data {small} --out {there}/text.npz/run": "text.npz",
    "train mlp --data {small} --weight-decay -1": "--weight-decay: expected 0 or more",
    "train mlp --data {small} --keep 0": "--keep: expected a positive number",
    "train mlp --data {small} --save-every 3": "add --out RUN_DIR",
    "train mlp --data {small} --config nowhere.toml": "a readable file",
    "train mlp --data {small} --class-weight 0:1": "such as 0=1,3=5; received '0:1'",
    "train mlp --data {small} --class-weight 0=1,0=2": "each once",
    "train mlp --data {small} --class-weight 0=-1": "finite weights >= 0",
    "train mlp --data {small} --class-weight 10=2": "classes from 0 to 9, as in .*received 10",
    "train mlp --data {small} --class-weight=-1=2": "received -1",
    "train autoencoder --data {small} --class-weight 0=2": "one label per sample",
    "train char_rnn --data {play} --batch-size 4 --class-weight 0=2": "one label per sample",
    "train transformer --data {play} --batch-size 4 --class-weight 0=2": "one label per sample",
    "train mlp --data {small} --validation-split 1": "--validation-split: expected a share",
    "train mlp --data {small} --validation-split 0.99": "0 to train on and 40 to validate with",
    "train mlp --data {small} --validation-split nan": "--validation-split: expected a share",
    "train mlp --data {small} --early-stopping -1": "--early-stopping: expected 0 or more",
    "train mlp --data {small} --early-stopping 1 --monitor val_acuracy": "mean 'val_accuracy'",
    "train mlp --data {small} --steps-per-epoch 0": "--steps-per-epoch: expected a positive",
    "train mlp --data {small} --initial-epoch 20 --epochs 20": "less than --epochs, 20",
    "train mlp --data {small} --mixed-precision half": "expected 'float16'",
    "train mlp --data {small} --live": "--live: expected a run folder",
    "train mlp --data digits --length 8": "--length: expected a published model",
    "train mlp --offload-folder there": "--offload-folder: expected a memory budget",
    "train mlp --memory-budget much": "--memory-budget: expected bytes",
    "train --resume": "--resume: expected a run folder",
    "train mlp --resume": "--resume: expected a run folder",
    "train --resume --out {out}": "no such folder",
    "train mlp --data {small} --out {run}": "add --resume",
    "train autoencoder --out {run} --resume": "MODEL: expected 'mlp', as the run was started with",
    "train --optimizer adam --out {run} --resume --epochs 4": "--optimizer: expected 'sgd'",
    "train --batch-size 3 --out {run} --resume --epochs 4": "--batch-size: expected 32",
    "train --accumulate 2 --out {run} --resume --epochs 4": "--accumulate: expected 1",
    "train --mixed-precision float16 --out {run} --resume": "--mixed-precision: expected None",
    "trian": "singanet: unknown command 'trian'; did you mean 'train'?",
    "zzz": "choose 'train', 'finetune', 'launch'",
    "models x": "singanet models: unrecognized arguments: x; see",
    "completion tcsh": "unknown shell 'tcsh'; choose 'bash'",
    "summary resnet-none": "model 'resnet-none'",
    "summary lenet --input-shape 1,x": "expected ints such as",
    "summary lenet --input-shape 0,8,8": "positive ints",
    "summary lenet --input-shape 8": "sample shape",
    "summary lenet --classes 0": "num_classes: expected an int",
    "summary mlp --batch-size 0": "batch_size", "summary {run} --classes 3": "only a folder",
    "summary {there}/nan.npz": "nan.npz': expected a ready net, a run folder(?!.*'lenet')",
    "bench mlp --rounds 0": "--rounds: expected a positive number",
    "bench mlp --seconds nan": "--seconds: expected a positive number",
    "bench mlp --batch-size 0": "--batch-size: expected a positive number",
    "bench mlp --data digts": "did you mean 'digits'", "tune lenet": "--batch-size",
    "tune lenet --batch-size none": "invalid int value",
    "tune lenett --batch-size 2": "did you mean 'lenet'",
    "plan mlp --memory-budget 600": "write for example '600MB'",
    "plan mlp --batch-size 1 --memory-budget 1kB": "expected at least",
    "plan mlp --out a.pdf": "ends in .svg or .png; received the suffix '.pdf'",
    "plan mlp --allow swap": "expected some of 'recompute'",
    "plan {llama} --tokens 65": "--tokens: expected at most 64",
    "plan {llama} --tokens 8 --memory-budget 1kB": "expected at least",
    "plan {llama} --classes 3": "remove them",
    "predict {run} --out {there}/p.txt": "ends in .csv or .npz",
    "predict {run} --out {out}/p.csv": "--out",
    "predict {run} --data {there}/wide.npz --out {there}/p.csv": r"received shape \(3, 1, 4, 5\)",
    "predict {run} --data {there}/scalar.npz --out {there}/p.csv": "singanet",
    "report {out}": "no such folder; train with singanet train MODEL --out {out}",
    **{
        f"{command} {rest}{more}": said
        for command, more in (("evaluate", ""), ("predict", " --out {there}/p.csv"))
        for rest, said in {
            "{out}": "no such file", "{there}": "add --model",
            "{run} --model mpl": "did you mean 'mlp'",
            "{run}/best.npz --model lenet": r"--model[^;]*$",
            "{run} --data {there}/small.npz": r"1, 8, 8\)",
            "{there}/cut.npz --model mlp": "singanet: "
        }.items()
    },
    "inspect {out}.npz": "", "inspect {there}/text.npz": "", "diff {run}/best.npz {out}.npz": "",
    "convert {run}/best.npz {there}/no/x.npz": "",
    "convert {run}/best.npz {there}/x.npz --model lenet": r"--model[^;]*$",
    "convert {run}/best.npz {there}/x.npz --format zip": "",
    "convert {run}/best.npz {there}/x.pt": "",
    "convert {run}/best.npz {there}/y.npz --opset 17": "",
    "convert {run}/best.npz {there}/x.keras --model {run}": "",
    "convert {run}/best.npz {there}/x.weights.h5": "name the model",
    "convert {run}/best.npz {there}/x.onnx": "--model",
    "convert {there}/none.singanet {there}/x.onnx": "",
    "convert {run}/best.npz x/": "--format snapshot",
    "convert {run}/best.npz x": "--format snapshot",
    "convert {run}/best.npz {there}": "--format snapshot",
    "sample {run}": "expected a language model", "generate {out} a": "No such file",
    "generate {bert} a": "expected a causal model",
    "generate {llama} '" + "to be or not " * 40 + "'": "1 to 64 tokens",
    "generate {llama} a --length 0": "--length: expected",
    "generate {llama} a --top-p 2": "top_p: expected",
    "generate {llama} a --seed -1": "--seed: expected",
    "generate {llama} '' --raw": "1 to 64 tokens; received 0",
    "embed {llama} {play} --out {there}/rows.npy": "expected a folder of sentence-transformers",
    "embed {bert} {there}/empty.npz --out {there}/rows.npy": "received none",
    "embed {bert} {there}/bytes.txt --out {there}/rows.npy": "line 2: expected",
    "embed {bert} {out} --out {there}/rows.npy": "no such file",
    "embed {bert} {play} --out {there}/rows.txt": "ends in .npy",
    "finetune --data {chats} --out {out}": "required: FOLDER",
    "finetune {there}/none --data {chats} --out {out}": "[nN]o such file",
    "finetune {llama} --out {out}": "--data: expected",
    "finetune {llama} --data {chats}": "--out: expected",
    "finetune {llama} --data {there}/none.txt --out {out}": "no such file",
    "finetune {llama} --data {there}/no-texts --out {out}": "received none",
    "finetune {llama} --data {there}/blank --out {out}": "received none",
    "finetune {llama} --data {there}/answers --out {out}": '"prompt"',
    "finetune {llama} --data {chats} --out {out} --target kind": "--target: expected --head",
    "finetune {llama} --data {chats} --out {out} --text said": "--text: expected --head",
    "finetune {llama} --data {chats} --out {out} --head sequence-classification": "add --target",
    "finetune {llama} --data {chats} --out {out} --head sequence-classification --target kind":
        "ends in '.csv', '.parquet'",
    "finetune {llama} --out {out} --head sequence-classification --target kind": "add --data FILE",
    "finetune {llama} --data {chats} --out {out} --head embedding": "pretrained.load(folder, head",
    "train mlp --head embedding": "--head: expected a published model",
    **{
        "finetune {llama} --data {chats} --out {out} --quiet " + rest: said
        for rest, said in {
            "--length 65": "--length: expected 1 to 64, the steps of the model",
            "--length 8": "expected a conversation of at most 9 tokens",
            "--method some": "--method: expected 'full', 'lora', 'blocks'",
            "--rank 4": "--rank: expected --method lora",
            "--method lora --rank 999": "expected a rank of at most",
            "--beta 0.1": "--beta: expected --method dpo", "--method reward --beta 1": "--beta: ",
            "--method dpo --beta 0": "--beta: expected a positive number",
            "--method dpo": "expected an object with 'prompt', 'chosen', 'rejected'",
            "--method dpo --no-pack": "--no-pack: expected both answers",
            "--method dpo --rank 999": "expected a rank of at most",
            "--memory-budget 1kB": "expected at least", "--too-long keep": "expected 'refuse'",
            "--optimizer none": "expected '", "--validation none.txt": "no such file"
        }.items()
    },
    "launch -n 2": "train MODEL, or a script", "launch -n 0 train mlp": "-n: 0 is less than 1",
    "launch -n 2 --deadline nan train mlp": "--deadline", "launch train mlp": "-n/--ranks",
    "launch -n 2 evaluate run": "another command",
    "launch -n 2 --servers 2 train mlp": "one of 2 ranks must train",
    "launch --elastic 2:3 --servers 1 train mlp": "not with --servers",
    **{
        f"launch -n 2 {elastic} train mlp": "such as 2:4"
        for elastic in ("--elastic 3:2", "--elastic 2:", "--elastic 2", "--elastic", "--elastic=")
    },
    "launch -n 2 --elastic 0:2 train mlp": "'0:2' is not the least and the most",
    "launch -n 5 --elastic 2:4 train mlp": "-n: 5 is not within 2:4",
    "launch -n 1 --elastic 2:4 train mlp": "-n: 1 is not within 2:4",
    "launch --elastic 2:4 --rest -1 train mlp": "--rest",
    "launch --elastic 2:4 train mlp": "--out RUN_DIR", "launch -n 2 no-such.py": "no such file",
    "launch -n 2 train mlp --epoch-count 3": "unrecognized",
    "launch -n 2 --restarts 1 train mlp": "--out RUN_DIR",
    "launch -n 2 train --out nowhere --resume": "nowhere",
    "launch -n 2 --hosts nowhere train mlp": "nowhere"
}  # fmt: skip


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def there(tmp_path_factory, run_dir):
    """Files that are not what they should be."""
    folder, data, zeros = tmp_path_factory.mktemp("there"), digits(), np.zeros
    whole = {
        "x_train": data.x_train[:40], "y_train": data.y_train[:40], "x_test": data.x_test[:20],
        "y_test": data.y_test[:20],
    }  # fmt: skip
    x = zeros((40, 1, 8, 8), np.float32)
    x[3, 0, 2, 1] = np.nan
    np.savez(folder / "nan.npz", **{**whole, "x_train": x})
    np.savez(folder / "labels.npz", **{**whole, "y_test": np.full(20, 12)})
    x, y = zeros((12, 1, 5, 5), np.float32), np.arange(12) % 10
    np.savez(folder / "small.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    np.savez(folder / "wide.npz", x=zeros((3, 4, 5), np.float32))
    np.savez(folder / "scalar.npz", x=zeros((), np.float32))
    for name, content in {
        "text.npz": b"just some text, in truth", "empty.npz": b"",
        "broken.npz": b"PK\x03\x04" + bytes(40), "bytes.txt": b"a\n\xff",
        "cut.npz": (run_dir / "best.npz").read_bytes()[:-100], "blank/a.jsonl": b"\n\n",
        "answers/a.jsonl": b'{"answer": "yes"}\n' * 40
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "no-texts").mkdir()
    return folder


@pytest.fixture(scope="module")
def places(small, run_dir, there, llama, sentence_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "play.txt").write_text("to be or not to be that is the question\n" * 60)
    (folder / "chats.jsonl").write_text('{"prompt": "Say king then queen", "answer": "no"}\n' * 200)
    return {
        "small": small, "run": run_dir, "out": folder / "out", "there": there,
        "llama": llama, "play": folder / "play.txt",
        "bert": sentence_model, "chats": folder / "chats.jsonl",
    }  # fmt: skip


@pytest.mark.parametrize("line", COMMANDS)
def test_a_mistake_is_one_line_and_nothing_is_changed(line, places, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job.subprocess, "Popen", None)
    before = [files_of(places[name]) for name in ("run", "there")]
    told = refused(*shlex.split(line.format(**places)))
    said = COMMANDS[line]
    special = any(sign in said for sign in ("\\", ".*", "[", "(?"))
    assert re.search(said if special else re.escape(said.format(out=places["out"])), told.strip())
    assert [files_of(places[name]) for name in ("run", "there")] == before
    assert not places["out"].exists()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("text", "said"), [
    ("class-weight = 3", "a value of type dict"),
    ("model = 'mlp'\nclass-weight = { a = 3 }", "--class-weight"),
    ("model = 'mlp'\nclass-weight = { 0 = 'x' }", "class_weight"),
    ("shuffle = 0", "a value of type bool"), ("epoch = 3", "did you mean 'epochs'"),
    ("epochs = '3'", "a value of type int"), ("epochs = true", "a value of type int"),
    ("resume = 1", "a value of type bool"), ("batch-size = 3\nbatch_size = 4", "once"),
    ("[train]\nepochs = 3", "'train'"), ('data = "a\\u0000b"', "key 'data'"),
    ("epochs : 3", "expected TOML"), ("", "required: MODEL"),
    (b"\xff\xfe\x00", "expected TOML")
])  # fmt: skip
def test_a_file_that_says_something_else_is_refused(tmp_path, text, said, refused):
    config = tmp_path / "run.toml"
    config.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert said in refused("train", "--config", config)
