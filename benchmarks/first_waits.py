"""What users wait for first, each part beside the library that they would take instead.

Each side is a fresh process, in turn, round by round, after one that reads the files from the disk
and compiles what is kept. A part starts where the one before ends: modules that a library imports
late are in the part that needs them. Import: from the start of `python`. First fit: an MLP of 1,797
digits is built and trained for an epoch, with the recording of its step; PyTorch's is a loop of
eager steps. Published model: a folder of 135 million float32 numbers, loaded and asked once for the
scores of 32 tokens. ONNX file: a ResNet-50 of 102 MB, loaded, and one image predicted. Predictor:
the same net built here, `net.predictor()` and one image; the other side has it in its file.

    python benchmarks/first_waits.py [--rounds 5] [--clock cpu|wall] [words of parts]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pretrained import config
from report import introduction, publish, spread, table

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
WORDS = 32
Done = Callable[[str], None]


def image() -> Any:
    """One random image."""
    import numpy as np

    return np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)


def digits() -> tuple[Any, Any]:
    """Random images of 8 by 8 with labels, as many as there are digits."""
    import numpy as np

    rng = np.random.default_rng(0)
    return rng.random((1797, 64), np.float32), rng.integers(0, 10, 1797)


def fit_singanet(folder: Path, done: Done) -> None:
    """An epoch of ours."""
    import singanet

    done("import")
    x, y = digits()
    layers = singanet.layers
    net = singanet.FeedForwardNet(
        [layers.Dense("a", 256, activation="relu"), layers.Dense("b", 128, activation="relu"),
         layers.Dense("c", 10)], seed=0)  # fmt: skip
    net.compile("adam", "softmax_cross_entropy")
    net.fit(x, y, batch_size=32, epochs=1, verbose=False)
    done("fit")


def fit_torch(folder: Path, done: Done) -> None:
    """An epoch of PyTorch's, eager."""
    import torch

    done("import")
    x, y = map(torch.from_numpy, digits())
    nn = torch.nn
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(),
                        nn.Linear(128, 10))  # fmt: skip
    adam, order = torch.optim.Adam(net.parameters()), torch.randperm(len(x))
    for rows in order.split(32):
        adam.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        adam.step()
    done("fit")


def fit_keras(folder: Path, done: Done) -> None:
    """An epoch of Keras'."""
    import keras

    done("import")
    x, y = digits()
    layers = keras.layers
    net = keras.Sequential(
        [layers.Dense(256, "relu"), layers.Dense(128, "relu"), layers.Dense(10)])  # fmt: skip
    net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    net.fit(x, y, batch_size=32, epochs=1, verbose=0)
    done("fit")


def pretrained_singanet(folder: Path, done: Done) -> None:
    """A published model, ours."""
    import singanet

    done("import")
    net = singanet.pretrained.load(folder / "llama")
    done("load")
    import numpy as np

    net.predict(np.arange(WORDS)[None])
    done("first scores")


def pretrained_transformers(folder: Path, done: Done) -> None:
    """The same by transformers."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    kind: Any = transformers.AutoModelForCausalLM
    done("import")
    net = kind.from_pretrained(folder / "llama", dtype=torch.float32)
    done("load")
    with torch.inference_mode():
        net(torch.arange(WORDS)[None])
    done("first scores")


def onnx_singanet(folder: Path, done: Done) -> None:
    """An ONNX file, ours."""
    import singanet

    done("import")
    net = singanet.onnx.load(folder / "net.onnx")
    done("load")
    net.predictor()(image())
    done("first prediction")


def onnx_runtime(folder: Path, done: Done) -> None:
    """An ONNX file by ONNX Runtime, on one thread."""
    import onnxruntime

    done("import")
    given = onnxruntime.SessionOptions()
    given.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    session = onnxruntime.InferenceSession(folder / "net.onnx", given)
    done("load")
    session.run(None, {session.get_inputs()[0].name: image()})
    done("first prediction")


def predictor_singanet(folder: Path, done: Done) -> None:
    """A predictor of a net that is built here."""
    import singanet

    done("import")
    net = singanet.models.build("resnet50", seed=0)
    net.param_values()  # Random values are drawn when they are asked for.
    done("build")
    net.predictor()(image())
    done("predictor")


def predictor_runtime(folder: Path, done: Done) -> None:
    """A session of the same net by ONNX Runtime."""
    import onnxruntime

    done("import")
    done("build")
    given = onnxruntime.SessionOptions()
    given.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    session = onnxruntime.InferenceSession(folder / "net.onnx", given)
    session.run(None, {session.get_inputs()[0].name: image()})
    done("predictor")


PARTS: dict[str, dict[str, Callable[[Path, Done], None]]] = {
    "fit": {"singanet": fit_singanet, "PyTorch": fit_torch, "Keras on torch": fit_keras},
    "published model": {"singanet": pretrained_singanet, "transformers": pretrained_transformers},
    "ONNX file": {"singanet": onnx_singanet, "ONNX Runtime": onnx_runtime},
    "predictor": {"singanet": predictor_singanet, "ONNX Runtime": predictor_runtime},
}


def prepare(folder: Path) -> None:
    """Write the files that both sides read."""
    import singanet

    net = singanet.models.build("resnet50", seed=0)
    singanet.onnx.save(net, folder / "net.onnx")
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text(json.dumps(config("135m")))
    llama = singanet.pretrained.build(config("135m"), seed=0)
    singanet.pretrained.save(llama, folder / "llama", "float32")


def child(part: str, side: str, folder: Path) -> list[tuple[str, float, float]]:
    """The time of the system and of the process at the end of each step of a side."""
    laps = []

    def done(name: str) -> None:
        laps.append((name, time.time(), time.process_time()))

    PARTS[part][side](folder, done)
    return laps


def seconds(
    part: str, side: str, folder: Path, wall: bool, env: dict[str, str]
) -> dict[str, float]:
    """Seconds of each step of a side in a fresh process."""
    start = time.time() if wall else 0.0
    call = [sys.executable, __file__, "--child", part, side, str(folder)]
    run = subprocess.run(call, env=env, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{part}, {side}: {run.stderr}")
    found = {}
    for name, at, busy in json.loads(run.stdout.splitlines()[-1]):
        now = at if wall else busy
        found[name], start = now - start, now
    return found


def rows(part: str, rounds: int, folder: Path, wall: bool, env: dict[str, str]) -> list[list[str]]:
    """The rows of a part: one a step, and one for all together."""
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in PARTS[part]}
    for k in range(rounds + 1):
        for side in runs:
            # The first process reads files from the disk and compiles.
            found = seconds(part, side, folder, wall, env)
            if k:
                runs[side].append({**found, "from `python` to the end": sum(found.values())})
    made = []
    own, others = runs["singanet"], {s: r for s, r in runs.items() if s != "singanet"}
    for step in own[0]:
        middle = {s: statistics.median(run[step] for run in r) for s, r in runs.items()}
        best = min(others, key=lambda side: middle[side])
        ratio = middle[best] / middle["singanet"] if middle["singanet"] else 0.0
        ours = f"{middle['singanet']:.3f} {spread([run[step] for run in own])}"
        rivals = ", ".join(f"{side} {middle[side]:.3f}" for side in others)
        made.append([part, step, ours, rivals, f"{ratio:.2f}"])
        print(made[-1], file=sys.stderr)
    return made


def main(words: Sequence[str]) -> None:
    """Print and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="words of parts; else all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="cpu")
    given = parser.parse_args(words)
    env = {**os.environ, **dict.fromkeys(THREADS, str(given.threads)), "KERAS_BACKEND": "torch"}
    # Bytecode is kept, as where packages are installed the usual way.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    found = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        prepare(folder)
        for part in PARTS:
            if not given.parts or any(word in part for word in given.parts):
                found += rows(part, given.rounds, folder, given.clock == "wall", env)
    head = ["part", "step", "singanet, s", "others, s", "fastest other / singanet"]
    notes = (
        f"{given.rounds} rounds, {given.threads} thread(s), {given.clock} time, medians with half "
        f"the distance between the quartiles. Load of the machine: {os.getloadavg()[0]:.1f}."
    )
    text = f"{introduction(__doc__)}\n\n{table(head, found)}\n\n{notes}"
    suffix = "_part" * bool(given.parts) + "_wall" * (given.clock == "wall")
    publish(f"first_waits_{given.threads}t{suffix}", "What users wait for first", text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(sys.argv[2], sys.argv[3], Path(sys.argv[4]))))
    else:
        main(sys.argv[1:])
