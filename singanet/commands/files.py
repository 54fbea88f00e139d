"""``singanet inspect``, ``convert`` and ``diff``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add_command(commands: Any) -> None:
    """Add the three to argparse's subparsers."""
    add_commands(commands, _build, print)


def add_commands(commands: Any, build: Callable[[str], Any], show: Callable[[str], Any]) -> None:
    """Add the three to ``commands``, argparse's subparsers.

    ``build`` makes the net called by ``--model``; ``show`` gets the text of each result. Each
    sets ``command``, a function of the parsed arguments; that of diff returns 1 where the two
    differ, the others 0.
    """
    inspect = commands.add_parser("inspect", help="list the arrays of a checkpoint")
    inspect.add_argument("file", metavar="FILE", type=Path)
    inspect.add_argument("--table", action="store_true", help="read no array, only the table")
    inspect.set_defaults(command=lambda arguments: _inspect(arguments, show))

    convert = commands.add_parser(
        "convert", help="write a checkpoint in another format, or a net as an ONNX graph"
    )
    convert.add_argument("source", metavar="IN", type=Path)
    convert.add_argument("target", metavar="OUT", help="its suffix says the format")
    convert.add_argument(
        "--model", metavar="NAME|RUN_DIR|FILE", help="whose names and layouts to use"
    )
    convert.add_argument("--format", metavar="FORMAT", help="instead of OUT's suffix")
    convert.add_argument(
        "--dtype", metavar="TYPE", help="of floats: float32, float16, bfloat16; q8_0 in a .gguf"
    )
    convert.add_argument("--opset", type=int, metavar="N", help="of an .onnx file, 17 to 23")
    convert.set_defaults(command=lambda arguments: _convert(arguments, build, show))

    diff = commands.add_parser("diff", help="compare two checkpoints of any formats")
    diff.add_argument("a", metavar="A", type=Path)
    diff.add_argument("b", metavar="B", type=Path)
    diff.set_defaults(command=lambda arguments: _diff(arguments, show))


def _inspect(arguments: argparse.Namespace, show: Callable[[str], Any]) -> int:
    if arguments.file.suffix.lower() == ".onnx":
        from singanet.onnx import inspect as inspect_graph

        show(inspect_graph(arguments.file))
        return 0
    from singanet.checkpoint.tools import inspect

    show(inspect(arguments.file, values=not arguments.table))
    return 0


def _convert(
    arguments: argparse.Namespace, build: Callable[[str], Any], show: Callable[[str], Any]
) -> int:
    from singanet.checkpoint.tools import convert
    from singanet.errors import ArgumentError, StateMismatchError

    arguments.target = _target(arguments.target, arguments.format)
    if arguments.target.suffix.lower() == ".onnx" and arguments.dtype is None:
        show(_as_graph(arguments, build))
        return 0
    if arguments.opset is not None:
        raise ArgumentError(
            f"convert to {str(arguments.target)!r}",
            expected="--opset with an .onnx file alone",
            received=f"--opset {arguments.opset}",
            advice="leave it out",
        )
    from singanet.runs.trained import convert_whole

    if arguments.target.suffix.lower() == ".gguf" and arguments.model is None:
        done = _as_gguf(arguments.source, arguments.target, arguments.dtype)
        if done is not None:
            show(done)
            return 0
    if arguments.model is None and arguments.dtype is None:
        done = convert_whole(arguments.source, arguments.target, arguments.format)
        if done is not None:
            show(done)
            return 0
    net = None if arguments.model is None else build(arguments.model)
    try:
        told = (arguments.format, arguments.dtype)
        show(convert(arguments.source, arguments.target, net, *told))
    except StateMismatchError as error:
        raise error.advising("name the net whose weights they are with --model") from error
    return 0


def _target(given: str, format: str | None) -> Path:
    """The path ``given``. Errors: a folder, and a name without a suffix or format.

    `net.save` would write SINGA's two files beside such a name, which hardly anyone asks for.
    """
    from singanet.errors import ArgumentError

    path = Path(given)
    if given.endswith(("/", os.sep)) or path.is_dir():
        received = "a folder"
    elif format is None and not path.suffix:
        received = "a name without a suffix"
    else:
        return path
    raise ArgumentError(
        f"convert to {given!r}",
        expected="a file whose suffix says the format, or --format",
        received=received,
        advice="write for example OUT.safetensors, or OUT.safetensors.index.json for a folder of "
        "shards; --format snapshot writes SINGA's files",
    )


def _as_gguf(source: Path, target: Path, dtype: str | None) -> str | None:
    """Write the published model at ``source`` as llama.cpp reads it; None where there is none.

    Errors: those of `pretrained.save` for such a file.
    """
    from singanet.runs.run_options import is_published, model_in

    place = model_in(source)
    if not place.is_dir() or not is_published(place):
        return None
    from singanet import pretrained

    net = pretrained.load(place)
    pretrained.save(net, target, dtype)
    return f"{target}: {len(net.origin.arrays)} arrays, the config and the tokenizer"


def _as_graph(arguments: argparse.Namespace, build: Callable[[str], Any]) -> str:
    """Write the net at ``source``, or of ``--model`` with the weights there, as an ONNX graph.

    Errors: weights alone without a net; those of reading and of `onnx.save`.
    """
    from singanet.errors import ArgumentError
    from singanet.onnx import save
    from singanet.runs.trained import is_whole, whole_net
    from singanet.saving.predictor import load_predictor
    from singanet.saving.whole_model import PREDICTOR, is_model_file

    source, target, found = arguments.source, arguments.target, Path(arguments.source).is_file()
    net: Any
    if arguments.model is not None:
        net = build(arguments.model)
        net.load(source)
    elif found and is_model_file(source, PREDICTOR):
        net = load_predictor(source)
    elif source.is_dir():
        from singanet.runs.trained import run_net
        from singanet.training.files import furthest

        net = run_net(source)
        net.load(furthest(source))
    elif not found or is_whole(source):
        net = whole_net(source)
    else:
        raise ArgumentError(
            f"convert of {str(source)!r}",
            expected="a net for an ONNX graph: a file of a whole model or of a predictor",
            received="weights alone",
            advice="name the net whose weights they are with --model",
        )
    save(net, target, **({} if arguments.opset is None else {"opset": arguments.opset}))
    return f"{target}: an ONNX graph"


def _diff(arguments: argparse.Namespace, show: Callable[[str], Any]) -> int:
    from singanet.checkpoint.tools import diff

    difference = diff(arguments.a, arguments.b)
    show(difference.text)
    return 0 if difference.equal else 1


def _build(name: str) -> Any:
    if Path(name).is_dir():
        from singanet.runs.trained import run_net

        return run_net(Path(name))
    from singanet.models import build
    from singanet.runs.trained import is_whole, whole_net

    return whole_net(name) if is_whole(name) else build(name)
