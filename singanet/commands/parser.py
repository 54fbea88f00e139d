"""The parser of the command line: a command is a function, its arguments are the options."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import Parameter, cleandoc, signature
from shutil import get_terminal_size
from typing import Annotated, Any, NoReturn

from singanet.commands.runs.run_options import GROUPS, OPTIONS, OptionHint, RunOptions, options_of
from singanet.errors import did_you_mean, one_of

USAGE_ERROR = 2


class UsageError(Exception):
    """An invalid combination of arguments, which the command's parser reports."""


class _HelpFormatter(argparse.HelpFormatter):
    """Formats a help as wide as the terminal, up to 100 characters; indented lines stay."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(get_terminal_size().columns, 100) - 2)

    def _split_lines(self, text: str, width: int) -> list[str]:
        # Not within --batch-size.
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        filled = ("\n".join(self._split_lines(part, width)) for part in parts)
        return "\n\n".join(
            part if "\n " in part else new for part, new in zip(parts, filled, strict=True)
        )


class CommandParser(argparse.ArgumentParser):
    """A parser with errors of one line that name the command, and options in groups."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_HelpFormatter, add_help=False, **settings)
        self._titled: dict[str, Any] = {}

    def group(self, title: str) -> Any:
        """Return the group of arguments under ``title`` in the help; a new one comes last."""
        if title not in self._titled:
            self._titled[title] = self.add_argument_group(title)
        return self._titled[title]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, and refuse unknown arguments here, not in the root parser."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            advice = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions, "")
            said = f"unrecognized arguments: {' '.join(unknown)}"
            self.error(f"{said}; {advice}" if advice and unknown[0].startswith("-") else said)
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse ``value`` if ``action`` has other choices, with the closest of them."""
        if action.choices is not None and value not in action.choices:
            names = [*action.choices]
            advice = did_you_mean(value, names, f"choose {one_of(names, len(names))}")
            kind = "command" if action.dest == argparse.SUPPRESS else action.dest
            self.error(f"unknown {kind} {value!r}; {advice}")

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(USAGE_ERROR, f"{self.prog}: {message}; see {self.prog} --help\n")


class RootParser(CommandParser):
    """The parser of the whole command line; ``commands`` has the parsers by command.

    Without a command it prints its help.
    """

    def __init__(self, version: str) -> None:
        super().__init__(
            prog="singanet",
            usage="%(prog)s COMMAND [options]",
            description="Train and look at feed-forward nets.",
            epilog=_START,
        )
        self._added: Any = self.add_subparsers(
            prog="singanet", metavar="COMMAND", parser_class=CommandParser
        )
        self.commands: dict[str, CommandParser] = self._added.choices
        self._families: dict[str, list[Any]] = {}
        options = self.group("options")
        options.add_argument("-h", "--help", action="help", help=_HELP)
        version = f"singanet {version}"
        options.add_argument("--version", action="version", version=version, help="print it")
        self.set_defaults(command=self._without_command)

    def _without_command(self, given: argparse.Namespace) -> int:
        self.print_help()
        return 0

    def format_help(self) -> str:
        """Return the help, with the commands by family."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, [], [])
        formatter.add_text(self.description)
        for title, shown in {**self._families, "options": self._get_optional_actions()}.items():
            formatter.start_section(title)
            formatter.add_arguments(shown)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def add(
        self,
        family: str,
        function: Callable[..., int],
        *before: OptionHint,
        without: Collection[str] | None = None,
    ) -> None:
        """Add ``function`` as a command of ``family``; it returns the exit status.

        Its docstring is the help, and ends with examples. Arguments before ``*`` are positional;
        ``root`` receives this parser. A function that trains has more options: ``before``, then the
        fields of `RunOptions` except ``without``. It receives only options that the user passes, as
        files may set the others.
        """
        text, _, rest = cleandoc(function.__doc__ or "").partition("\n\n")
        rest, _, examples = rest.rpartition("Examples:\n")
        parser: CommandParser = self._added.add_parser(
            function.__name__,
            help=text[:1].lower() + text[1:].rstrip("."),
            description=f"{text}\n\n{rest}",
            epilog=f"examples:\n{examples}",
        )
        self._families.setdefault(family, []).append(self._added._choices_actions[-1])
        for option in before:
            _add_option(parser, option, None, True, argparse.SUPPRESS, "net and data")
        hints, parameters = options_of(function), signature(function).parameters
        if without is not None:
            for title, names in GROUPS.items():
                for name in names:
                    if name not in without:
                        option, usual = OPTIONS[name], getattr(RunOptions, name)
                        bare = name == "model"
                        _add_option(parser, option, usual, bare, argparse.SUPPRESS, title)
        for name, option in hints.items():
            bare = parameters[name].kind is Parameter.POSITIONAL_OR_KEYWORD
            _add_option(parser, option, parameters[name].default, bare)
        parser.group("options").add_argument("-h", "--help", action="help", help=_HELP)
        parser.usage = _usage(parser)

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


_HELP = "show this help"
_START = """examples:
  singanet train lenet --data digits --out runs/lenet
  singanet report runs/lenet

`singanet COMMAND --help` shows the options of a command, with examples."""


def _usage(parser: CommandParser) -> str:
    """Return the usage: what is needed, and where options are."""
    needed = [
        f"{action.option_strings[-1]} {action.metavar}"
        for action in parser._get_optional_actions()
        if action.required
    ]
    bare = [
        f"[{action.metavar}]" if action.nargs == "?" else str(action.metavar or action.dest)
        for action in parser._get_positional_actions()
    ]
    if any(action.nargs == argparse.REMAINDER for action in parser._actions):
        return " ".join(["%(prog)s", "[options]", *bare])
    return " ".join(["%(prog)s", *bare, *needed, "[options]"])


def _add_option(
    parser: CommandParser,
    option: OptionHint,
    usual: Any,
    bare: bool,
    default: Any = None,
    title: str = "options",
) -> None:
    """Add ``option`` with the usual value ``usual``; ``default`` is the value if it is not passed.

    With ``bare`` it is positional.
    """
    needed = usual is Parameter.empty
    default = usual if default is None and not needed else default
    group = parser.group("arguments" if bare and title == "options" else title)
    if option.kind is bool:
        flag, action = f"--{'no-' * usual}{option.flag}", f"store_{not usual}".lower()
        shown = {"dest": option.name, "default": default, "help": option.help}
        group.add_argument(flag, action=action, **shown)
        return
    kind, help = option.kind, option.help
    if usual is not None and not needed and "(default" not in str(help):
        help = f"{help} (default: {f'{usual:g}' if kind is float else usual})"
    more: dict[str, Any] = {"type": _READERS.get(kind, kind), "default": default}
    if bare:
        names = [option.name]
        more |= {"nargs": "+"} if option.several else {} if needed else {"nargs": "?"}
    else:
        names = [*option.short, f"--{option.flag}"]
        more |= {"dest": option.name, "required": needed}
        more |= {"action": "append"} if option.several else {}
    more |= option.more
    group.add_argument(*names, metavar=option.metavar, help=help, **more)


def shape(text: str) -> tuple[int, ...]:
    """Parse ``1,28,28`` as a tuple. Errors: `argparse.ArgumentTypeError`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        expected = "expected ints such as 1,28,28"
        raise argparse.ArgumentTypeError(f"{expected}; received {text!r}") from None


def weights(text: str) -> dict[int | str, float]:
    """Parse ``0=1,3=5`` or ``no=1,yes=5`` as a dict. Errors: `argparse.ArgumentTypeError`."""
    try:
        pairs = [part.rsplit("=", 1) for part in text.split(",")]
        found = {int(k) if re.fullmatch(r"-?\d+", k) else k: float(value) for k, value in pairs}
        if len(found) == len(pairs):
            return found
    except ValueError:
        pass
    expected = "expected classes with weights, each once, such as 0=1,3=5"
    raise argparse.ArgumentTypeError(f"{expected}; received {text!r}")


_READERS: dict[type, Callable[[str], Any]] = {tuple: shape, dict: weights}
"""Functions that parse a value, for types that cannot parse it themselves."""


def completion(
    shell: Annotated[str, "bash|zsh|fish", "the shell", {"choices": ("bash", "zsh", "fish")}],
    *,
    root: RootParser,
) -> int:
    """Print a script that completes commands in a shell.

    It offers commands, options, and their values: names of nets, data sets, optimizers, ways and
    formats, files and folders. This command needs the package shtab.

    Examples:
      eval "$(singanet completion bash)"
      eval "$(singanet completion zsh)"
      singanet completion fish | source
    """
    from singanet.base.extras import package

    shtab = package("singanet completion", "shtab", "shtab")
    words = _words()
    for parser in root.commands.values():
        # Shells show one line for a command.
        parser.description = None
        for action in parser._actions:
            known, place = words.get(action.dest, []), str(action.metavar)
            if action.dest == "model" and not re.search("MODEL|NAME", place):
                known = []  # of published models, which have no such names
            suffixes = [f"*{each}" for each in re.findall(r"FILE(\.\w+)", place)]
            paths = {*_PATHS.findall(place)}
            if not paths or action.choices:
                action.choices = action.choices or known or None
                continue
            kind = shtab.FILE if paths - _FOLDERS else shtab.DIRECTORY
            if suffixes and len(suffixes) == len(_PATHS.findall(place)):
                kind = shtab.glob(*suffixes)
            action.complete = _either(known, kind) if known else kind  # type: ignore[attr-defined]
    print(shtab.complete(root, shell))
    return 0


_PATHS = re.compile(r"\b(FILE|FOLDER|(?:RUN_)?DIR|DATA|IN|OUT|A|B|SCRIPT)\b")
"""Words in the metavar of an option that takes a path."""
_FOLDERS = {"FOLDER", "DIR", "RUN_DIR"}


def _words() -> dict[str, list[str]]:
    """Return the names that arguments take, by the argument."""
    from singanet.checkpoint.formats import FORMATS
    from singanet.commands.runs.optimizers import USUAL_RATES, WAYS
    from singanet.commands.runs.recipe import TUNINGS
    from singanet.commands.runs.tasks import DATA_SETS
    from singanet.models.registry import ENTRIES
    from singanet.training import steps

    models = [entry.name for entry in ENTRIES]
    types = ["float16", "bfloat16"]
    return {
        "program": ["train", *models],
        "model": models,
        "data": [*DATA_SETS],
        "optimizer": [*USUAL_RATES],
        "parallel": [*WAYS],
        "clip_by": [*steps.WAYS],
        "method": [*TUNINGS],
        "too_long": ["refuse", "skip", "cut"],
        "mixed_precision": [*types, "auto"],
        "dtype": ["float32", *types, "q8_0"],
        "format": [*FORMATS],
        "monitor": ["val_loss", "val_accuracy"],
    }


def _either(words: Sequence[str], paths: Mapping[str, Any]) -> dict[str, Any]:
    """Return shtab's completion by ``words`` and by ``paths``, its own for files or folders."""
    name, known = f"_singanet_file_or_{'_'.join(words[:2])}", " ".join(words)
    name = f"{re.sub(r'[^a-z_]', '', name)}_{len(words)}"
    bash = f"compgen -W '{known}' -- $1; {paths['bash']} $1"
    zsh = f"_alternative 'names:name:({known})' 'paths:path:{paths['zsh']}'"
    return {
        "bash": name,
        "zsh": name,
        "fish": f"{known} {paths['fish']}",
        "preamble": {"bash": f"{name}() {{ {bash}; }}", "zsh": f"{name}() {{ {zsh} }}"},
    }
