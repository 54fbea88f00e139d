"""The commands of ``singanet``, by family; each imports its needs when it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from singanet import __version__
from singanet.commands import file_commands, looking_commands, trained_commands, training_commands
from singanet.commands.launch_command import launch
from singanet.commands.parser import CommandParser, RootParser, completion
from singanet.commands.serving_command import serve

__all__ = ["CommandParser", "make_parser"]


def make_parser() -> CommandParser:
    """Return the parser of the command line.

    It sets ``command``, a function of the parsed arguments that returns an exit status.
    """
    root, files, looking = RootParser(__version__), file_commands, looking_commands
    training, trained = training_commands, trained_commands
    root.add("train", training.train, without=())
    root.add("train", training.finetune, training.PUBLISHED, without=training.NOT_OF_TEXTS)
    families: dict[str, Sequence[Callable[..., int]]] = {
        "train": [launch],
        "use a trained net": [
            *(trained.evaluate, trained.predict, trained.sample, trained.generate, trained.embed),
            serve,
        ],
        "look": [looking.report, looking.models, looking.summary, looking.plan],
        "measure": [training.bench, training.tune, looking.devices],
        "files": [files.inspect, files.convert, files.diff],
        "shell": [completion],
    }
    for family, functions in families.items():
        for function in functions:
            root.add(family, function)
    return root
