"""``singanet predict``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from singanet.commands.weights import add_arguments

BATCH = 256


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser(
        "predict",
        help="write what a trained net makes of samples",
        epilog="The samples are those for testing of DATA: of an .npz file the array x, or where "
        "there is none x_test. A CSV "
        "file has a row a sample: its number, its likeliest class, the probabilities; an .npz "
        "file the arrays prediction and class.",
    )
    add_arguments(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="FILE.csv or FILE.npz"
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from singanet.errors import ArgumentError
    from singanet.loss import CategoricalCrossEntropy, SoftmaxCrossEntropy
    from singanet.runs.run import bare_samples, check_target, write_predictions
    from singanet.runs.tasks.published import PublishedTexts
    from singanet.runs.trained import is_whole, trained, whole_net

    check_target(arguments.out)
    x = bare_samples(arguments.data)
    samples: Any
    if x is not None and arguments.model is None and is_whole(arguments.path):
        net, samples = whole_net(arguments.path), x
    else:
        data = arguments.data if x is None else None
        net, task = trained(arguments.path, arguments.model, data, arguments.best)
        if isinstance(task, PublishedTexts):
            raise ArgumentError(
                "singanet predict",
                expected="a net that makes something of each sample",
                received="a tuned language model, which has a number for each word at each token",
                advice=f"call `singanet generate {arguments.path}`, or `singanet evaluate` for its"
                " perplexity",
            )
        samples = task.test_batches() if x is None else x
    out = net.predictor()(samples, BATCH)
    of_classes = (SoftmaxCrossEntropy, CategoricalCrossEntropy)
    classes = isinstance(net.loss, of_classes) and out.ndim == 2
    write_predictions(arguments.out, out, classes)
    print(f"{arguments.out}: {len(out):,} predictions of shape {tuple(out.shape[1:])}")
    return 0
