"""Peak memory of the command line on large files, beside PyTorch's with the usual readers.

A table of a million rows as .csv, and an array of 4 GB as .npy, through ``singanet train`` (one
epoch) and ``singanet predict``. Beside them: ``pandas.read_csv``, whole, into tensors and a
DataLoader; ``numpy.load(mmap_mode="r")`` behind a Dataset and a DataLoader. The layers are alike,
the batches of one size.

Each is a process of its own. The peak is the most resident memory (VmHWM); "without files" is the
most anonymous memory, without the pages of a mapped file, which the system may take back (sampled
every 20 ms). Seconds are of the whole process, reading included.

    python benchmarks/own_files.py [--rows N] [--gigabytes N] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from report import introduction, publish, table

TEXTS = {"shop": 10, "city": 200, "item": 5000}
NUMBERS, WIDTH, BATCH, CLASSES = 9, 1024, 256, 10


def write_table(path: str, rows: int) -> None:
    """Write a table of three columns of text and nine of numbers, one of which has gaps."""
    import numpy as np

    rng = np.random.default_rng(0)
    with open(path, "w") as file:
        numbers = [f"n{k}" for k in range(NUMBERS)]
        file.write(",".join([*TEXTS, *numbers, "buys"]) + "\n")
        for start in range(0, rows, 10_000):
            count = min(10_000, rows - start)
            texts = [rng.integers(0, size, count).tolist() for size in TEXTS.values()]
            x = rng.standard_normal((count, NUMBERS)).round(4)
            yes = x[:, 0] + x[:, 1] + np.array(texts[0]) * 0.2 > 1
            gaps = rng.random(count) < 0.02
            for row, (values, gap, buys) in enumerate(zip(x.tolist(), gaps, yes, strict=True)):
                words = [f"{name} {ids[row]}" for name, ids in zip(TEXTS, texts, strict=True)]
                given = ["" if gap else str(values[0]), *map(str, values[1:])]
                file.write(",".join([*words, *given, "yes" if buys else "no"]) + "\n")


def write_arrays(x_path: str, y_path: str, rows: int) -> None:
    """Write ``rows`` samples of `WIDTH` numbers, and their classes."""
    import numpy as np

    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, rows)
    np.save(y_path, y)
    x = np.lib.format.open_memmap(x_path, "w+", np.float32, (rows, WIDTH))
    for start in range(0, rows, 8192):
        part = y[start : start + 8192]
        made = rng.standard_normal((len(part), WIDTH), np.float32)
        made[np.arange(len(part)), part] += 3
        x[start : start + len(part)] = made
    x.flush()


def torch_table(path: str) -> None:
    """Train and predict by pandas and PyTorch: embeddings, dense layers of 128 and 64."""
    import numpy as np
    import pandas
    import torch

    frame = pandas.read_csv(path)
    y = torch.tensor((frame.pop("buys") == "yes").to_numpy(), dtype=torch.long)
    names = list(TEXTS)
    ids = np.stack([frame[name].astype("category").cat.codes.to_numpy() for name in names], 1)
    numbers = frame.drop(columns=names)
    numbers = (numbers.fillna(numbers.median()) - numbers.mean()) / numbers.std()
    parts = torch.tensor(ids, dtype=torch.long), torch.tensor(numbers.to_numpy("float32")), y
    tables = torch.nn.ModuleList(torch.nn.Embedding(size, 8) for size in TEXTS.values())
    deep = _dense(8 * len(TEXTS) + NUMBERS, 128, 64, 2)

    def scores(ids: Any, numbers: Any) -> Any:
        vectors = [table(ids[:, k]) for k, table in enumerate(tables)]
        return deep(torch.cat([*vectors, numbers], 1))

    data = torch.utils.data.TensorDataset(*parts)
    _train(scores, [*tables.parameters(), *deep.parameters()], data)


def torch_arrays(x_path: str, y_path: str) -> None:
    """Train and predict on a memmap by PyTorch: dense layers of 256 and 128."""
    import numpy as np
    import torch

    x, y = np.load(x_path, mmap_mode="r"), np.load(y_path)

    class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, row: int) -> Any:
            return np.array(x[row]), y[row]

    net = _dense(WIDTH, 256, 128, CLASSES)
    _train(net, [*net.parameters()], Rows())


def _dense(*sizes: int) -> Any:
    import torch

    layers: list[Any] = []
    for size, out in pairwise(sizes):
        layers += [torch.nn.Linear(size, out), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def _train(scores: Any, params: list[Any], data: Any) -> None:
    """One epoch of Adam, then the predictions of all samples."""
    import torch

    torch.set_num_threads(1)
    rule = torch.optim.Adam(params, 0.002)
    for *x, y in torch.utils.data.DataLoader(data, BATCH, shuffle=True):
        rule.zero_grad()
        torch.nn.functional.cross_entropy(scores(*x), y).backward()
        rule.step()
    with torch.no_grad():
        parts = [scores(*x) for *x, _ in torch.utils.data.DataLoader(data, BATCH)]
    print(torch.cat(parts).shape)


def measured(*argv: str) -> tuple[float, int, int]:
    """Seconds, and the most bytes resident and anonymous, of a Python process with ``argv``."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *argv], stdout=subprocess.DEVNULL)
    most = {"VmHWM": 0, "RssAnon": 0}
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        for line in status.splitlines():
            name, _, rest = line.partition(":")
            if name in most:
                most[name] = max(most[name], int(rest.split()[0]) * 1024)
        time.sleep(0.02)
    if process.wait():
        raise SystemExit(f"{argv}: exit status {process.returncode}")
    return time.perf_counter() - start, most["VmHWM"], most["RssAnon"]


def sides(folder: Path) -> dict[str, list[str]]:
    """The arguments of each process by its title, in the order in which they run."""
    x, y, csv, me = folder / "x.npy", folder / "y.npy", folder / "table.csv", __file__
    usual = ["--epochs", "1", "--batch-size", str(BATCH), "--optimizer", "adam", "--lr", "0.002"]
    common = [*usual, "--validation-split", "0", "--quiet"]
    command, runs = ["-m", "singanet"], (folder / "table", folder / "array")
    of_table = ["--data", str(csv), "--target", "buys", "--out", str(runs[0])]
    of_array = ["--data", str(x), "--target", str(y), "--out", str(runs[1])]
    return {
        ".csv, singanet train deepfm": [*command, "train", "deepfm", *of_table, *common],
        ".csv, singanet predict": [*command, "predict", str(runs[0]), "--data", str(csv),
                                   "--out", str(folder / "p.csv")],
        ".csv, pandas and PyTorch, both": [me, "torch_table", str(csv)],
        ".npy, singanet train mlp": [*command, "train", "mlp", *of_array, *common],
        ".npy, singanet predict": [*command, "predict", str(runs[1]), "--data", str(x),
                                   "--out", str(folder / "q.csv")],
        ".npy, memmap and PyTorch, both": [me, "torch_arrays", str(x), str(y)],
    }  # fmt: skip


def main() -> None:
    """Write the files, measure, publish, remove the files."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    count = int(given.gigabytes * 2**30 / (4 * WIDTH))
    if shutil.disk_usage(given.folder).free < 2 * count * 4 * WIDTH:
        raise SystemExit(f"{given.folder}: twice the room of the array is needed")
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        folder = Path(made)
        x, y, csv = folder / "x.npy", folder / "y.npy", folder / "table.csv"
        # In processes of their own, so that this one stays small.
        for argv in (["write_table", csv, given.rows], ["write_arrays", x, y, count]):
            subprocess.run([sys.executable, __file__, *map(str, argv)], check=True)
        rows = []
        for title, argv in sides(folder).items():
            seconds, peak, anonymous = measured(*argv)
            rows.append([title, f"{peak / 1e6:,.0f}", f"{anonymous / 1e6:,.0f}", f"{seconds:.0f}"])
            print(rows[-1], file=sys.stderr, flush=True)
        sizes = [f"{os.path.getsize(path) / 1e6:,.0f} MB" for path in (csv, x)]
    text = f"{introduction(__doc__)}\n\n.csv: {given.rows:,} rows, {sizes[0]}. .npy: {sizes[1]}."
    head = ["process", "peak, MB", "without files, MB", "seconds"]
    publish("own_files", "Large files through the command line", f"{text}\n\n{table(head, rows)}")


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        name, *rest = sys.argv[1:]
        globals()[name](*(int(each) if each.isdecimal() else each for each in rest))
    else:
        main()
