"""The parser of the command line: a command is a function, its arguments are the options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection
from inspect import Parameter, cleandoc, signature
from typing import Annotated, Any, NoReturn

from singanet.commands.runs.run_options import OPTIONS, OptionHint, RunOptions, options_of
from singanet.errors import did_you_mean

USAGE_ERROR = 2


class UsageError(Exception):
    """An invalid combination of arguments, which the command's parser reports."""


class CommandParser(argparse.ArgumentParser):
    """A parser with errors of one line that name the command."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, and refuse unknown arguments here, not in the root parser."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            advice = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions, "")
            said = f"unrecognized arguments: {' '.join(unknown)}"
            self.error(f"{said}; {advice}" if advice and unknown[0].startswith("-") else said)
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(USAGE_ERROR, f"{self.prog}: {message}; see {self.prog} --help\n")


class RootParser(CommandParser):
    """The parser of the whole command line; ``commands`` has the parsers by command."""

    def __init__(self, version: str) -> None:
        super().__init__(prog="singanet", description="Train and look at feed-forward nets.")
        self.add_argument("--version", action="version", version=f"singanet {version}")
        self._added: Any = self.add_subparsers(
            title="commands", required=True, metavar="COMMAND", parser_class=CommandParser
        )
        self.commands: dict[str, CommandParser] = self._added.choices

    def add(
        self,
        function: Callable[..., int],
        *before: OptionHint,
        without: Collection[str] | None = None,
    ) -> None:
        """Add ``function`` as a command; it returns the exit status.

        Its docstring is the help. Arguments before ``*`` are positional; ``root`` receives this
        parser. A function that trains has more options: ``before``, then the fields of `RunOptions`
        except ``without``. It receives only options that the user passes, as files may set the
        others.
        """
        text, _, rest = cleandoc(function.__doc__ or "").partition("\n\n")
        help = text[:1].lower() + text[1:].rstrip(".")
        parser: CommandParser = self._added.add_parser(
            function.__name__, help=help, epilog=" ".join(rest.split())
        )
        for option in before:
            _add_option(parser, option, None, True, argparse.SUPPRESS)
        hints, parameters = options_of(function), signature(function).parameters
        for name, option in hints.items():
            bare = parameters[name].kind is Parameter.POSITIONAL_OR_KEYWORD
            _add_option(parser, option, parameters[name].default, bare)
        left_out = OPTIONS.keys() if without is None else without
        for name, option in OPTIONS.items():
            if name not in left_out:
                usual = getattr(RunOptions, name)
                _add_option(parser, option, usual, name == "model", argparse.SUPPRESS)

        def call(given: argparse.Namespace) -> int:
            arguments = {name: value for name, value in vars(given).items() if name != "command"}
            for name, option in hints.items():
                option.check(arguments[name])
            try:
                return function(**arguments, **({"root": self} if "root" in parameters else {}))
            except UsageError as error:
                message = str(error)
            parser.error(message)

        parser.set_defaults(command=call)


def _add_option(
    parser: CommandParser, option: OptionHint, usual: Any, bare: bool, default: Any = None
) -> None:
    """Add ``option`` with the usual value ``usual``; ``default`` is the value if it is not passed.

    With ``bare`` it is positional.
    """
    needed = usual is Parameter.empty
    default = usual if default is None and not needed else default
    if option.kind is bool:
        flag, action = f"--{'no-' * usual}{option.flag}", f"store_{not usual}".lower()
        shown = {"dest": option.name, "default": default, "help": option.help}
        parser.add_argument(flag, action=action, **shown)
        return
    kind = option.kind
    more: dict[str, Any] = {"type": _READERS.get(kind, kind), "default": default}
    if bare:
        names = [option.name]
        more |= {"nargs": "+"} if option.several else {} if needed else {"nargs": "?"}
    else:
        names = [*option.short, f"--{option.flag}"]
        more |= {"dest": option.name, "required": needed}
        more |= {"action": "append"} if option.several else {}
    more |= option.more
    parser.add_argument(*names, metavar=option.metavar, help=option.help, **more)


def shape(text: str) -> tuple[int, ...]:
    """Parse ``1,28,28`` as a tuple. Errors: `argparse.ArgumentTypeError`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        expected = "expected ints such as 1,28,28"
        raise argparse.ArgumentTypeError(f"{expected}; received {text!r}") from None


def weights(text: str) -> dict[int, float]:
    """Parse ``0=1,3=5`` as a dict. Errors: `argparse.ArgumentTypeError`."""
    try:
        pairs = [part.split("=") for part in text.split(",")]
        found = {int(key): float(value) for key, value in pairs}
        if len(found) == len(pairs):
            return found
    except ValueError:
        pass
    expected = "expected classes with weights, each once, such as 0=1,3=5"
    raise argparse.ArgumentTypeError(f"{expected}; received {text!r}")


_READERS: dict[type, Callable[[str], Any]] = {tuple: shape, dict: weights}
"""Functions that parse a value, for types that cannot parse it themselves."""


def completion(
    shell: Annotated[str, None, None, {"choices": ("bash", "zsh", "fish")}], *, root: RootParser
) -> int:
    """Print a script that completes commands in a shell.

    In bash: eval "$(singanet completion bash)", in zsh the same with zsh, in fish: singanet
    completion fish | source. This command needs the package shtab.
    """
    from singanet.base.extras import package
    from singanet.commands.runs.optimizers import USUAL_RATES
    from singanet.commands.runs.optimizers import WAYS as REDUCED
    from singanet.models.registry import ENTRIES
    from singanet.training.steps import WAYS

    shtab = package("singanet completion", "shtab", "shtab")
    models = [entry.name for entry in ENTRIES]
    words: dict[str, list[Any]] = {"program": ["train", *models], "model": models}
    words |= {"parallel": [*REDUCED], "optimizer": [*USUAL_RATES], "clip_by": [*WAYS]}
    for parser in root.commands.values():
        for action in parser._actions:
            known = words.get(action.dest, [])
            if _FILES.search(str(action.metavar)):
                known = [*known, *shtab.Optional.FILE]
            action.choices = action.choices or known or None
    print(shtab.complete(root, shell))
    return 0


_FILES = re.compile(r"\b(FILE|FOLDER|(RUN_)?DIR|DATA|IN|OUT|A|B|SCRIPT)\b")
"""Words in the metavar of an option that takes a path."""
