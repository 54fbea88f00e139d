"""The commands that inspect: ``summary``, ``plan``, ``report``, ``models`` and ``devices``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from singanet.commands.runs.run_options import refusal

if TYPE_CHECKING:
    from singanet.net import FeedForwardNet

Named: TypeAlias = Annotated[
    str, "MODEL|RUN_DIR|FILE|FOLDER", "a ready net, a run, a model file or a published model"
]
InputShape: TypeAlias = Annotated[
    tuple[int, ...] | None, "C,H,W", "sample shape of a ready net (default: its own)"
]
Classes: TypeAlias = Annotated[int | None, "N", "classes of a ready net (default: its own)"]


def named_net(
    command: str,
    name: str,
    input_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
) -> FeedForwardNet:
    """Return the net for ``singanet command``: a ready net, or the net of a run, file or folder.

    Errors: an unknown name; a shape with a run or file.
    """
    from singanet.commands.runs.published import drawn_net, is_published
    from singanet.commands.runs.trained import is_whole, run_net, whole_net

    path = Path(name)
    whole, published = is_whole(path), is_published(path)
    if not (whole or published or path.is_dir()):
        from singanet.models import build, entries

        if path.is_file() and name not in {entry.name for entry in entries()}:
            raise refusal(
                f"file {str(path)!r}",
                "a ready net, a run folder, a published folder or a file of `save_model`",
                "another file",
                "pass a name that singanet models lists; singanet inspect lists the arrays of a"
                " file of weights",
            )
        return build(name, input_shape, classes)
    if input_shape is not None or classes is not None:
        expected = "only a folder or model file, which has the shapes of its net"
        received = "--input-shape or --classes as well"
        raise refusal(f"singanet {command}", expected, received, "remove them")
    return drawn_net(path) if published else whole_net(path) if whole else run_net(path)


def summary(
    model: Named,
    *,
    input_shape: InputShape = None,
    classes: Classes = None,
    batch_size: Annotated[int | None, "N", "samples in a step; shows its memory"] = None,
) -> int:
    """Print the layers of a ready net, a run's net or a model file's net.

    Examples:
      singanet summary resnet20 --batch-size 64
    """
    net = named_net("summary", model, input_shape, classes)
    print(net.summary(batch_size))
    return 0


def plan(
    model: Named,
    *,
    input_shape: InputShape = None,
    classes: Classes = None,
    batch_size: Annotated[
        int | None, "N", "samples in a step (default: 32, for a published model 1)"
    ] = None,
    optimizer: Annotated[
        str | None, "NAME", "as for train (default: sgd, for a published model adafactor)"
    ] = None,
    tokens: Annotated[int | None, "N", "steps of a sample, for a net that takes any number"] = None,
    memory_budget: Annotated[
        str | None, "SIZE", "bytes such as 600MB (default: show every method)"
    ] = None,
    allow: Annotated[
        str, "NAME,...", "methods among recompute, micro-batches, light-state, offload"
    ] = "recompute,micro-batches",
    out: Annotated[Path | None, "FILE.svg|FILE.png", "write a picture of the arena"] = None,
) -> int:
    """Print how a training stays within a number of bytes, and the cost.

    Examples:
      singanet plan resnet20 --batch-size 128 --memory-budget 600MB
      singanet plan SmolLM2-135M-Instruct --tokens 512 --batch-size 8
    """
    from singanet.base.extras import REPORT, package
    from singanet.base.files import expect_suffix
    from singanet.commands.runs.optimizers import make_optimizer
    from singanet.pretrained import PretrainedNet

    if out is not None:
        expect_suffix("--out", out, (".svg", ".png"))
        package("--out", "matplotlib", REPORT)
    net = named_net("plan", model, input_shape, classes)
    usual, size = ("adafactor", 1) if isinstance(net, PretrainedNet) else ("sgd", 32)
    name = usual if optimizer is None else optimizer
    rule = make_optimizer(name, 1e-3, 0.0, steps=1, warm_up=0)
    ways, most = allow.replace("light-", "light ").split(","), net.most_steps
    if tokens is not None and most is not None and tokens > most:
        expected = f"at most {most}, the model's maximum"
        raise refusal("--tokens", expected, tokens, "pass fewer")
    size = size if batch_size is None else batch_size
    made = net.plan(size, rule, memory_budget, tokens, allow=ways)
    print(f"{made}\n\n{made.picture()}")
    if out is not None:
        made.chosen.step.report.plot(out)
    return 0


def report(
    run_dirs: Annotated[
        list[Path], "RUN_DIR|FOLDER", "runs that `train --out` wrote, or folders of them"
    ],
    *,
    out: Annotated[
        Path | None,
        "FILE",
        "the page (default: report.html in the folder; for a folder of runs comparison.html in"
        " it, for several folders here)",
    ] = None,
    live: Annotated[
        bool, "", "for one run: update the page every few seconds during the training"
    ] = False,
    pages: Annotated[bool, "", "compare runs without writing a page for each"] = True,
) -> int:
    """Show a run, or several runs or folders of runs together, as one HTML page.

    Examples:
      singanet report runs/lenet
      singanet report runs/lenet runs/other --out both.html
      singanet report runs
    """
    from singanet.report import follow, write_comparison, write_report
    from singanet.report.reading import runs_in

    several = len(run_dirs) > 1 or runs_in(run_dirs[0]) != run_dirs
    if live and several:
        advice = "remove it to compare unfinished runs"
        received = len(run_dirs) if len(run_dirs) > 1 else "a folder of runs"
        raise refusal("--live", "one run folder", received, advice)
    if several:
        print(write_comparison(run_dirs, out, pages))
    else:
        print((follow if live else write_report)(run_dirs[0], out))
    return 0


def models() -> int:
    """List the ready nets.

    Examples:
      singanet models
    """
    from singanet.models.registry import ENTRIES

    width = max(len(entry.name) for entry in ENTRIES)
    print(f"{'model'.ljust(width)}  parameters  description")
    for entry in ENTRIES:
        print(f"{entry.name.ljust(width)}  {entry.parameters:>10,}  {entry.description}")
    return 0


def devices() -> int:
    """List the available devices and kernels.

    Examples:
      singanet devices
    """
    from singanet.device import describe

    print(describe())
    return 0
