"""``singanet embed``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser(
        "embed",
        help="write the embeddings of sentences, one a line of a file",
        epilog="Of each line comes a row (dimensions,) of float32, pooled and scaled as the folder "
        "says.",
    )
    parser.add_argument("model", metavar="FOLDER", help="of a model of sentence-transformers")
    parser.add_argument("texts", metavar="FILE", type=Path, help="UTF-8, a sentence a line")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.npy")
    parser.add_argument(
        "--batch-size", type=int, default=32, metavar="N", help="sentences at once; 32"
    )
    parser.add_argument(
        "--cut", action="store_true", help="cut sentences longer than the model reads"
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from singanet.base.files import expect_suffix
    from singanet.runs.recipe import check_writable
    from singanet.runs.trained import embedded, lines_of, write_rows

    expect_suffix("--out", arguments.out, [".npy"])
    check_writable(arguments.out, "--out")
    lines = lines_of(arguments.texts)
    rows = embedded(arguments.model, lines, arguments.batch_size, arguments.cut)
    write_rows(arguments.out, rows)
    print(f"{arguments.out}: {len(rows):,} embeddings of {rows.shape[1]} dimensions")
    return 0
