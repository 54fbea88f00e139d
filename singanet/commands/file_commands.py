"""The commands for files of weights: ``inspect``, ``convert`` and ``diff``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from singanet.commands.looking_commands import named_net
from singanet.commands.runs.run_options import refusal


def inspect(
    file: Annotated[Path, "FILE", "a checkpoint of any format, a run, or a folder of shards"],
    *,
    table: Annotated[bool, "", "read only the table, no array"] = False,
) -> int:
    """List the arrays of a checkpoint.

    Examples:
      singanet inspect weights.safetensors
    """
    if file.suffix.lower() == ".onnx":
        from singanet.onnx import inspect as inspect_graph

        print(inspect_graph(file))
        return 0
    from singanet.checkpoint.tools import inspect

    print(inspect(_newest(file), values=not table))
    return 0


def diff(
    a: Annotated[Path, "A", "a checkpoint of any format, or a run"],
    b: Annotated[Path, "B", "another; the exit status is 1 if they differ"],
) -> int:
    """Compare two checkpoints of any formats.

    Examples:
      singanet diff before.npz after.safetensors
    """
    from singanet.checkpoint.tools import diff

    difference = diff(_newest(a), _newest(b))
    print(difference.text)
    return 0 if difference.equal else 1


def _newest(path: Path) -> Path:
    """Return the newest checkpoint of a run; any other path as it is."""
    from singanet.commands.runs.trained import is_run
    from singanet.training.files import furthest

    return furthest(path) if is_run(path) else path


def convert(
    source: Annotated[Path, "IN", "a checkpoint, a run, a model file or a published model"],
    target: Annotated[str, "OUT", "the suffix is the format"],
    *,
    model: Annotated[
        str | None, "NAME|RUN_DIR|FILE", "net with the names and layouts to use"
    ] = None,
    format: Annotated[str | None, "FORMAT", "format of OUT (default: its suffix)"] = None,
    dtype: Annotated[
        str | None,
        "TYPE",
        "type of floats: float32, float16, bfloat16; q8_0 in a .gguf (default: as they are)",
    ] = None,
    opset: Annotated[int | None, "N", "opset of an .onnx file, 17 to 23"] = None,
) -> int:
    """Write a checkpoint in another format, or a net as an ONNX graph.

    Examples:
      singanet convert weights.pt weights.safetensors
      singanet convert net.singanet net.onnx --opset 20
      singanet convert runs/lenet net.onnx
    """
    print(_converted(source, _target(target, format), model, format, dtype, opset))
    return 0


def _converted(
    source: Path,
    target: Path,
    model: str | None,
    format: str | None,
    dtype: str | None,
    opset: int | None,
) -> str:
    """Convert, and return a text for the user."""
    from singanet.checkpoint.tools import convert
    from singanet.commands.runs.trained import convert_whole
    from singanet.errors import StateMismatchError

    suffix, done = target.suffix.lower(), None
    if suffix == ".onnx" and dtype is None:
        return _as_graph(source, target, model, opset)
    if opset is not None:
        expected = "--opset only with an .onnx file"
        raise refusal(f"convert to {str(target)!r}", expected, f"--opset {opset}", "remove it")
    if suffix == ".gguf" and model is None:
        done = _as_gguf(source, target, dtype)
    if done is None and model is None and dtype is None:
        done = convert_whole(source, target, format)
    if done is not None:
        return done
    net = None if model is None else named_net("convert", model)
    try:
        return convert(source, target, net, format, dtype)
    except StateMismatchError as error:
        raise error.advising("pass the net of these weights with --model") from error


def _target(given: str, format: str | None) -> Path:
    """Return the path ``given``. Errors: a folder, or a name without a suffix or format.

    For such a name `net.save` would write SINGA's two files, which is rarely intended.
    """
    path = Path(given)
    if given.endswith(("/", os.sep)) or path.is_dir():
        received = "a folder"
    elif format is None and not path.suffix:
        received = "a name without a suffix"
    else:
        return path
    raise refusal(
        f"convert to {given!r}",
        "a file with the suffix of a format, or --format",
        received,
        "write for example OUT.safetensors, or OUT.safetensors.index.json for a folder of shards;"
        " --format snapshot writes SINGA's files",
    )


def _as_gguf(source: Path, target: Path, dtype: str | None) -> str | None:
    """Write the published model at ``source`` for llama.cpp; None if there is none.

    Errors: the errors of `pretrained.save`.
    """
    from singanet.commands.runs.published import is_published, model_in

    place = model_in(source)
    if not place.is_dir() or not is_published(place):
        return None
    from singanet import pretrained

    net = pretrained.load(place)
    pretrained.save(net, target, dtype)
    return f"{target}: {len(net.origin.arrays)} arrays, the config and the tokenizer"


def _as_graph(source: Path, target: Path, model: str | None, opset: int | None) -> str:
    """Write the net at ``source``, or of ``model`` with its weights, as an ONNX graph.

    Errors: weights without a net; as reading and `onnx.save`.
    """
    from singanet.commands.runs.trained import is_whole, whole_net
    from singanet.onnx import save
    from singanet.saving.predictor import load_predictor
    from singanet.saving.whole_model import PREDICTOR, is_model_file

    net: Any
    given: dict[str, Any] = {} if opset is None else {"opset": opset}
    found = source.is_file()
    if model is not None:
        net = named_net("convert", model)
        net.load(source)
    elif found and is_model_file(source, PREDICTOR):
        net = load_predictor(source)
    elif not found or is_whole(source):
        net = whole_net(source)
    else:
        expected = "a net for an ONNX graph: a file of a whole model or of a predictor"
        advice = "pass the net of these weights with --model"
        raise refusal(f"convert of {str(source)!r}", expected, "only weights", advice)
    save(net, target, **given)
    return f"{target}: an ONNX graph"
