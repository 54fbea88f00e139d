"""``singanet train``."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from singanet.commands.weighted import weights

_WORDS = {2: "interrupted", 15: "terminated"}
DIVERGED = 3
_GIVEN = argparse.SUPPRESS
"""An option that is not given does not appear, so that files can say it instead."""


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser(
        "train",
        help="train a ready net, or that of a file, and print its test accuracy",
        argument_default=_GIVEN,
        epilog="The rate rises to its highest in the first epoch and then falls to 0. A signal "
        "to end (Ctrl-C) is heeded after the step in work, its state saved with --out. The exit "
        "status is 3 where the loss is no longer finite.",
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a name that `singanet models` lists"
    )
    parser.add_argument(
        "--from",
        dest="from_",
        metavar="FILE",
        help="instead of MODEL: the net in a .singanet, .keras or .onnx file, with its weights",
    )
    parser.add_argument(
        "--data",
        metavar="DATA",
        help="digits, FILE.npz, a folder of MNIST or CIFAR; for language models plays or a text "
        "file; for tables census, movielens or clicks; left out, what comes with the package",
    )
    _add_method(parser)
    _add_course(parser)
    _add_files(parser)
    parser.set_defaults(command=partial(_run, parser))


def _add_method(parser: Any) -> None:
    add = parser.add_argument
    add("--epochs", type=int, metavar="N")
    add("--batch-size", type=int, metavar="N")
    add("--optimizer", metavar="NAME", help="sgd, adam, ...: those of singanet.optimizer")
    add("--lr", type=float, metavar="F", help="the highest learning rate; it rises and then falls")
    add("--weight-decay", type=float, metavar="F")
    add("--clip", type=float, metavar="F", help="a bound on gradients")
    add(
        "--clip-by",
        metavar="HOW",
        help="layer (the norm of each; the usual), global (of all, exactly), running or value",
    )
    add("--accumulate", type=int, metavar="N", help="update with the mean of so many batches")
    add("--memory-budget", metavar="SIZE", help="such as 600MB: recompute or split to keep it")
    add("--offload-folder", metavar="DIR", help="where the net goes if nothing else keeps it")
    add(
        "--mixed-precision",
        metavar="TYPE",
        help="float16: half the memory; bfloat16: faster products, or auto",
    )
    add("--seed", type=int, metavar="N")
    add(
        "--parallel",
        metavar="HOW",
        help="of several processes: allreduce (the usual), half, sparse, partial, local, ps, "
        "hybrid or pipeline",
    )
    add("--ratio", type=float, metavar="F", help="share of the gradients that is sent, of sparse")
    add("--every", type=int, metavar="N", help="steps of local, parts of partial, micro-batches")


def _add_course(parser: Any) -> None:
    add = parser.add_argument
    add(
        "--validation-split",
        type=float,
        metavar="F",
        help="share of the training data to validate with; 0.1 with --out or --early-stopping",
    )
    add("--early-stopping", type=int, metavar="N", help="end after N epochs without gain")
    add("--monitor", metavar="NAME", help="what gains and the best weights go by; val_loss")
    add("--class-weight", type=weights, metavar="K=F,...", help="such as 0=1,3=5; others weigh 1")
    add("--no-shuffle", dest="shuffle", action="store_false", help="samples in their own order")
    add("--drop-last", action="store_true", help="without a last batch that is not full")
    add("--steps-per-epoch", type=int, metavar="N", help="batches an epoch")
    add("--initial-epoch", type=int, metavar="N", help="count epochs from here, up to --epochs")
    add("--quiet", action="store_true", help="no progress on standard error")


def _add_files(parser: Any) -> None:
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="TOML with these options; those here win")
    add("--out", type=Path, metavar="RUN_DIR", help="keep checkpoints, curves and figures here")
    add("--resume", action="store_true", help="go on with what is in RUN_DIR, to the bit")
    add("--keep", type=int, metavar="N", help="checkpoints of so many epochs; 3")
    add("--save-every", type=int, metavar="N", help="a checkpoint after so many steps too")
    add("--tensorboard", metavar="DIR", help="event files for TensorBoard")
    add("--json", type=Path, metavar="FILE", help="write the figures here")


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from singanet.parallel import init
    from singanet.runs.config import gathered
    from singanet.runs.run import DivergedError, RunInterrupted, RunOptions, run

    given = {key: value for key, value in vars(arguments).items() if key != "command"}
    options = gathered(given)
    if not {"model", "from_"} & options.keys():
        parser.error("the following arguments are required: MODEL, or --from FILE")
    try:
        result = run(RunOptions(**options))
    except RunInterrupted as stop:
        number = int(stop.number)
        print(f"singanet: {_WORDS[number]}{_how_to_go_on(stop.folder)}", file=sys.stderr)
        return 128 + number
    except DivergedError as error:
        print(f"singanet: {error}", file=sys.stderr)
        return DIVERGED
    if init().rank == 0:
        print(f"{result.report}  {result.figures['seconds']:.1f} s")
    return 0


def _how_to_go_on(folder: Path | None) -> str:
    return "" if folder is None else f"; go on with: singanet train --out {folder} --resume"
