"""What ``import singanet`` costs beyond a bare interpreter: seconds, resident memory, extras."""

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
MEMORY = "; import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"


def main() -> None:
    """Print and keep the table."""
    seconds: dict[str, list[float]] = {name: [] for name in CODES}
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
    for name, code in codes.items():
        out = subprocess.run([sys.executable, "-c", code + MEMORY], capture_output=True, check=True)
        memory[name] = int(out.stdout) / 1024
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
    code = f"import sys, singanet; print([n for n in {EXTRAS!r} if n in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    header = ["command", "s", "spread", "beyond bare, s", "peak resident MB"]
    body = (
        table(header, rows) + f"\n\nextras imported by `import singanet`: {loaded.stdout.strip()}"
    )
    publish("import_time", "Import time", body)


if __name__ == "__main__":
    main()
