"""What ``import singanet`` costs beyond a bare interpreter: seconds, resident memory, extras.

The last row is what the import takes within a process that has imported NumPy before, by its own
clock: start of the interpreter and NumPy's import, which vary, are not in it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from report import publish, spread, table

ROUNDS = 15
EXTRAS = ("cupy", "torch", "keras", "PIL", "mpi4py", "onnx", "tqdm", "h5py", "google.protobuf")
CODES = {
    "bare interpreter": "pass",
    "import numpy": "import numpy",
    "import singanet": "import singanet",
    "import torch": "import torch",
}
BEYOND = "import singanet beyond numpy, in one run"
_WITHIN = (
    "import time, numpy; t = time.perf_counter(); import singanet; print(time.perf_counter() - t)"
)
_OWN = "import sys, singanet; print(sum(n.split('.')[0] == 'singanet' for n in sys.modules))"
MEMORY = "; import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"


def told(code: str) -> str:
    """What a fresh interpreter prints that runs ``code``."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    return run.stdout.strip()


def beyond_numpy() -> float:
    """Seconds of ``import singanet`` where NumPy is imported already."""
    return float(told(_WITHIN))


def own_modules() -> int:
    """How many modules of singanet ``import singanet`` loads."""
    return int(told(_OWN))


def main() -> None:
    """Print and keep the table."""
    seconds: dict[str, list[float]] = {name: [] for name in CODES}
    within: list[float] = []
    memory: dict[str, float] = {}
    codes = dict(CODES)
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode:
        del codes["import torch"]
        print("PyTorch is not installed: no row for it")
    for _ in range(ROUNDS):
        for name, code in codes.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            seconds[name].append(time.perf_counter() - start)
        within.append(beyond_numpy())
    for name, code in codes.items():
        memory[name] = int(told(code + MEMORY)) / 1024
    bare = statistics.median(seconds["bare interpreter"])
    rows = [
        [
            name,
            f"{statistics.median(seconds[name]):.3f}",
            spread(seconds[name]),
            f"{statistics.median(seconds[name]) - bare:.3f}",
            f"{memory[name]:.0f}",
        ]
        for name in codes
    ]
    middle = f"{statistics.median(within):.3f}"
    rows.append([BEYOND, middle, spread(within), "", f"{memory['import singanet']:.0f}"])
    loaded = told(f"import sys, singanet; print([n for n in {EXTRAS!r} if n in sys.modules])")
    header = ["command", "s", "spread", "beyond bare, s", "peak resident MB"]
    body = (
        f"{table(header, rows)}\n\nmodules of its own: {own_modules()}"
        f"\n\nextras imported by `import singanet`: {loaded}"
    )
    publish("import_time", "Import time", body)


if __name__ == "__main__":
    main()
