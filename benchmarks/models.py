"""Ready nets trained as `singanet train` does, each on the data that come with the package.

`python benchmarks/models.py` runs one of each family; with names it runs those and prints only.
"""

from __future__ import annotations

import os
import sys
from math import prod

from report import publish, table

from singanet.commands.runs.run import run
from singanet.commands.runs.run_options import RunOptions
from singanet.commands.runs.tasks import load_task
from singanet.models import build, find

NAMES = (
    *("mlp", "lenet", "alexnet", "vgg11", "resnet20", "preresnet20", "wrn-16-4", "resnet18"),
    *("googlenet", "mobilenet", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"),
    *("efficientnet_b0", "densenet121", "vit_tiny", "unet"),
    *("lstm", "char_rnn", "transformer", "wide_deep", "deepfm", "autoencoder"),
)
# Of the costly ones, so that the table takes minutes and not an hour.
EPOCHS = dict.fromkeys(("vgg11", "wrn-16-4", "resnet18", "mobilenet"), 10)
EPOCHS |= dict.fromkeys(("googlenet", "mobilenet_v2", "mobilenet_v3_small"), 5)
EPOCHS |= dict.fromkeys(("mobilenet_v3_large", "efficientnet_b0", "densenet121"), 5)


def trained_parameters(name: str) -> int:
    """How many numbers of the net are trained, in the form that its data ask for."""
    task = load_task(find(name), None)
    net = build(name, task.input_shape, task.num_classes, **task.options)
    return sum(prod(param.shape) for param in net.params() if param.trainable)


def row(name: str) -> list[str]:
    """The line of one net."""
    result = run(RunOptions(name, epochs=EPOCHS.get(name)))
    figures = result.figures
    accuracy = figures["test_accuracy"]
    return [
        name,
        figures["data"],
        f"{trained_parameters(name):,}",
        str(figures["epochs"]),
        f"{figures['test_loss']:.4f}",
        "" if accuracy is None else f"{accuracy:.4f}",
        f"{figures['seconds']:.0f}",
        f"{figures['samples_per_second']:,.0f}",
    ]


def main() -> None:
    """Print the table, and keep it where every family was run."""
    names = sys.argv[1:]
    header = ["model", "data", "trained parameters", "epochs", "test loss", "test accuracy"]
    body = table([*header, "s", "samples/s"], [row(name) for name in names or NAMES])
    notes = (
        "Losses: cross-entropy in nats (char_rnn and transformer: per character, a sample being "
        "64 of them); autoencoder: half the mean squared error. Seed 0, and "
        "defaults but for the epochs of the costly ones. Threads of BLAS: "
        f"{os.environ.get('OPENBLAS_NUM_THREADS', 'all')}; load of the machine at the end: "
        f"{os.getloadavg()[2]:.1f}, of which this is one."
    )
    if names:
        print(body)
    else:
        publish("models", "Ready nets on the data of the package", f"{body}\n\n{notes}")


if __name__ == "__main__":
    main()
