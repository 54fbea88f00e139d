"""Seconds from the start of `python` to the end of the first training steps of every ready net.

Each side is a fresh process, in turn, round by round, after one that reads the files from the
disk and leaves bytecode. The first step is singanet's by the layers; at the second it records the
step, plans its memory and replays it, and that is in the second figure. Rivals: PyTorch (eager)
where there is a twin, and Keras on the backends that its interpreter has, which compile at their
first step on TensorFlow and JAX. A last row is singanet's very first use on a processor, which
measures how fast that is. Before it, unless rows are named, the table of `first_waits.py`: import,
a first fit, files of other libraries and a first predictor.

    python benchmarks/first_seconds.py --keras-python VENV/bin/python
    python benchmarks/first_seconds.py --rows mlp,lenet:32 --rounds 5 --clock cpu
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
from collections.abc import Mapping, Sequence
from pathlib import Path

import first_waits
from keras_twins import NAMES as IN_KERAS
from keras_vs_singanet import THREADS
from report import introduction, publish, spread, table

from singanet.models import entries, find

SIDE = Path(__file__).with_name("first_side.py")
BACKENDS = ("torch", "tensorflow", "jax")
IN_TORCH = ("mlp", "lenet", "alexnet", "vgg11", "resnet20", "resnet50", "resnet152", "char_rnn",
            "transformer", "wide_deep")  # fmt: skip
OPTIONS = {"mlp": {"hidden": (256, 128)}}
"""Of the twins in PyTorch, which is made for another comparison as well."""
BATCHES = {"segmentation": 2, "tabular": 256}
"""By task; 8 of ImageNet's images, else 32."""
STEPS = 5
Times = Mapping[str, float]


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ops", choices=("numpy", "onednn"), default="onednn")
    parser.add_argument("--rows", default="", help="net or net:batch, with commas; else all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=30, help="after which no row is begun")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--keras-python", default=sys.executable, metavar="PATH")
    parser.add_argument("--rivals", choices=("all", "none"), default="all")
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error("--rounds of at least 2, for the spread")
    return given


def environment(given: argparse.Namespace) -> dict[str, str]:
    """Of all sides; bytecode is kept, as where packages are installed the usual way."""
    env = {**os.environ, **dict.fromkeys(THREADS, str(given.threads))}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir(), "singanet_bytecode"))
    env |= {"SINGANET_OPS": given.ops, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if given.threads == 1:
        env["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    return env


def timed(side: str, case: dict, given: argparse.Namespace, env: dict[str, str]) -> Times:
    """Seconds from the start of a process to the end of each part, and the number of parameters.

    Errors: a side that failed says why.
    """
    kind, _, backend = side.partition(" ")
    python = given.keras_python if kind == "keras" else sys.executable
    asked = {**case, "side": kind, "steps": STEPS}
    of_wall = given.clock == "wall"
    start = time.perf_counter() if of_wall else 0.0
    call = [python, str(SIDE), json.dumps(asked)]
    env = {**env, "KERAS_BACKEND": backend} if backend else env
    done = subprocess.run(call, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{side}, {case['model']}: {done.stderr}")
    answer = json.loads(done.stdout.splitlines()[-1])
    found = {"parameters": answer["parameters"]}
    began = start
    steady = []
    for what, wall, cpu in answer["times"]:
        now = wall if of_wall else cpu
        if what == "start":
            began = now
        elif what.startswith("step") and what > "step 2":
            steady.append(now - began)
        else:
            found[what] = now - start
    found["steady"] = min(steady)
    return found


def backends(python: str, env: dict[str, str]) -> list[str]:
    """The backends of Keras that ``python`` has."""
    found = []
    for name in BACKENDS:
        asked = [python, "-c", f"import keras, {name}"]
        done = subprocess.run(asked, env={**env, "KERAS_BACKEND": name}, capture_output=True)
        if not done.returncode:
            found.append(name)
    return found


def cases(rows: str) -> list[dict]:
    """The nets with their usual samples, those of ``rows`` or all."""
    words = [word.partition(":") for word in rows.split(",") if word]
    wanted = words or [(entry.name, "", "") for entry in entries()]
    found = []
    for name, _, batch in wanted:
        entry = find(name)
        usual = BATCHES.get(entry.task, 8 if entry.input_shape[-1] == 224 else 32)
        found.append(
            {
                "model": name,
                "batch": int(batch or usual),
                "shape": entry.input_shape,
                "classes": entry.num_classes,
                "task": entry.task,
                "options": OPTIONS.get(name, {}),
            }
        )
    return found


def middle(runs: Sequence[Times], key: str) -> float:
    """The median of ``key``."""
    return statistics.median(run[key] for run in runs)


def lines(case: dict, sides: Sequence[str], given: argparse.Namespace, env: dict) -> list[list]:
    """The rows of both tables for one net."""
    runs: dict[str, list[Times]] = {side: [] for side in sides}
    for round_ in range(given.rounds + 1):
        for side in sides:
            # Who runs first reads files from the disk, once for all.
            if round_:
                runs[side].append(timed(side, case, given, env))
            elif side not in WARM:
                WARM.add(side)
                timed(side, case, given, env)
    own, layers = runs["singanet"], runs["layers"]
    name = [case["model"], str(case["batch"])]
    against = [*name]
    for what in ("step 1", "step 2"):
        against += [f"{middle(own, what):.2f} {spread([run[what] for run in own])}"]
    for side in ("torch", *(f"keras {backend}" for backend in BACKENDS)):
        there = runs.get(side)
        against += [f"{middle(there, what):.2f}" if there else "" for what in ("step 1", "step 2")]
    rivals = [side for side in sides if side not in ("singanet", "layers")]
    for what in ("step 1", "step 2"):
        best = min((middle(runs[side], what) for side in rivals), default=None)
        against.append("" if best is None else f"{best / middle(own, what):.2f}")
    for side in rivals:
        theirs, ours = runs[side][0]["parameters"], own[0]["parameters"]
        # Keras' LSTM has one bias where ours and PyTorch's have two.
        if abs(theirs - ours) > (0 if side == "torch" else ours / 100):
            raise SystemExit(f"{case['model']}: {side} trains {theirs} numbers of {ours}")
    parts = [middle(own, "imported"), *(
        statistics.median(run[after] - run[before] for run in own)
        for before, after in (("imported", "built"), ("built", "step 1"), ("step 1", "step 2"),
                              ("step 1", "recorder"))
    ), middle(own, "steady"), middle(layers, "steady")]  # fmt: skip
    recorded, by_layers = parts[3] - parts[5], parts[6]
    ratios = (f"{part / by_layers:.2f}" for part in (recorded, recorded - parts[4]))
    split = [*name, *(f"{1e3 * part:.0f}" for part in parts), *ratios]
    return [against, split]


WARM: set[str] = set()
"""The sides that ran once."""


def main() -> None:
    """Print and keep the tables."""
    given = options()
    if not given.rows:
        first_waits.main([f"--threads={given.threads}", f"--clock={given.clock}"])
    env = environment(given)
    there = backends(given.keras_python, env) if given.rivals == "all" else []
    missing = [name for name in BACKENDS if name not in there]
    end = time.monotonic() + 60 * given.minutes
    against, split, left = [], [], []
    wanted = cases(given.rows)
    for case in wanted:
        if time.monotonic() > end:
            left.append(case["model"])
            continue
        sides = ["singanet", "layers"]
        if given.rivals == "all":
            sides += ["torch"] * (case["model"] in IN_TORCH)
            sides += [f"keras {name}" for name in there if case["model"] in IN_KERAS]
        row, parts = lines(case, sides, given, env)
        print(row, parts, file=sys.stderr)
        against.append(row)
        split.append(parts)
    with tempfile.TemporaryDirectory() as folder:
        fresh = [
            timed(
                "singanet", cases("resnet20")[0], given, {**env, "SINGANET_ROUTES": f"{folder}/{k}"}
            )
            for k in range(given.rounds)
        ]
    header = ["net", "batch"]
    for name in ("singanet", "PyTorch", *(f"Keras, {backend}" for backend in BACKENDS)):
        header += [f"{name}: first", "second"]
    header += ["best rival / singanet: first", "second"]
    told = ["net", "batch", "imported, ms", "building", "first step", "second",
            "of it imports", "replay", "by layers", "recording / by layers",
            "without imports"]  # fmt: skip
    notes = (
        f"{given.rounds} rounds, {given.threads} thread(s), {given.ops} kernels, {given.clock} "
        "time, medians with half the distance between the quartiles; SGD with momentum, no metric. "
        "Keras' twins are layer for layer or from `keras.applications`, and train as many numbers "
        "within 1 %, PyTorch's exactly. Recording: the second "
        "step less a replay, imports included; by layers: a step that is not recorded, warm. "
        f"First use on a processor: ResNet-20's first step after {middle(fresh, 'step 1'):.2f} s. "
        f"Load of the machine at the end: {os.getloadavg()[0]:.1f}."
    )
    if missing:
        notes += f" Without Keras on {', '.join(missing)}."
    if left:
        notes += f" No time was left for {', '.join(left)}."
    tables = f"{table(header, against)}\n\n{table(told, split)}"
    suffix = "_cpu" * (given.clock == "cpu") + "_part" * bool(given.rows)
    file = f"first_seconds_{given.ops}_{given.threads}t{suffix}"
    publish(file, "First seconds", f"{introduction(__doc__)}\n\n{tables}\n\n{notes}")


if __name__ == "__main__":
    main()
