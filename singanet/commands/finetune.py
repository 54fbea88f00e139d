"""``singanet finetune``."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from singanet.commands.train import add_options, run_command

_NOT_OF_TEXTS = ("model", "from_", "class_weight", "drop_last", "initial_epoch")


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser(
        "finetune",
        help="train a published language model on texts or conversations",
        argument_default=argparse.SUPPRESS,
        epilog="DATA is .txt or .jsonl, a file or a folder: texts, of which every token is learnt, "
        "or conversations, of which the answers are. RUN_DIR/model is the tuned model, as "
        "transformers reads it. It goes on with --out RUN_DIR --resume.",
    )
    parser.add_argument(
        "from_", nargs="?", metavar="FOLDER|FILE.gguf", help="of a published causal model"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML with these options; those here win"
    )
    add_options(parser, without=_NOT_OF_TEXTS)
    parser.set_defaults(command=partial(run_command, parser, needed="FOLDER"))
