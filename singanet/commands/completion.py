"""``singanet completion``: scripts for shells, made from the parser."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """What may follow a command: its options, and the words for some of its arguments.

    ``values`` is keyed by option; the key "" is for what stands without one.
    """

    name: str
    help: str
    options: dict[str, str]
    values: dict[str, list[str]]


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser(
        "completion",
        help="print a script that completes commands in a shell",
        epilog='In bash: eval "$(singanet completion bash)", in zsh the same with zsh, in fish: '
        "singanet completion fish | source.",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(command=lambda arguments: _run(arguments, commands))


def _run(arguments: argparse.Namespace, commands: Any) -> int:
    scripts: dict[str, Callable[[list[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
    print(scripts[arguments.shell](_described(commands)), end="")
    return 0


def _described(commands: Any) -> list[Command]:
    """Every command; argparse offers no other way to its options than ``_actions``."""
    from singanet.models.registry import ENTRIES
    from singanet.runs.optimizers import USUAL_RATES
    from singanet.runs.optimizers import WAYS as REDUCED
    from singanet.training.steps import WAYS

    models = [entry.name for entry in ENTRIES]
    words = {
        "model": models,
        "program": ["train", *models],
        "parallel": list(REDUCED),
        "optimizer": list(USUAL_RATES),
        "clip_by": list(WAYS),
    }
    helps = {action.dest: action.help or "" for action in commands._choices_actions}
    described = []
    for name, parser in commands.choices.items():
        options: dict[str, str] = {}
        values: dict[str, list[str]] = {}
        for action in parser._actions:
            known = list(action.choices or words.get(action.dest, []))
            long = [text for text in action.option_strings if text.startswith("--")]
            options |= dict.fromkeys(long, action.help or "")
            values |= {text: known for text in long or [""] if known}
        described.append(Command(name, helps[name], options, values))
    return described


def bash(commands: list[Command]) -> str:
    """For bash; where nothing fits, names of files."""
    return (
        "_singanet() {\n"
        '    local current="${COMP_WORDS[COMP_CWORD]}" words=""\n'
        '    local before="${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}"\n'
        '    if [ "$COMP_CWORD" -eq 1 ]; then\n'
        f'        words="{_names(commands)}"\n'
        "    else\n" + _cases(commands, 'words="{}"') + "    fi\n"
        '    COMPREPLY=($(compgen -W "$words" -- "$current"))\n'
        "}\n"
        "complete -o default -F _singanet singanet\n"
    )


def zsh(commands: list[Command]) -> str:
    """For zsh."""
    return (
        "#compdef singanet\n"
        "_singanet() {\n"
        '    local before="${words[2]} ${words[CURRENT-1]}"\n'
        "    if (( CURRENT == 2 )); then\n"
        f"        compadd -- {_names(commands)}\n"
        "    else\n"
        f"{_cases(commands, 'compadd -- {}')}"
        "        _files\n"
        "    fi\n"
        "}\n"
        "compdef _singanet singanet\n"
    )


def fish(commands: list[Command]) -> str:
    """For fish."""
    lines = []
    for command in commands:
        start = "complete -c singanet"
        text = _quoted(command.help)
        lines.append(f"{start} -n __fish_use_subcommand -f -a {command.name} -d {text}")
        here = f"{start} -n '__fish_seen_subcommand_from {command.name}'"
        for option, help_text in command.options.items():
            known = command.values.get(option)
            words = f" -x -a '{' '.join(known)}'" if known else ""
            lines.append(f"{here} -l {option[2:]} -d {_quoted(help_text)}{words}")
        if "" in command.values:
            lines.append(f"{here} -a '{' '.join(command.values[''])}'")
    return "\n".join(lines) + "\n"


def _names(commands: list[Command]) -> str:
    return " ".join(command.name for command in commands)


def _cases(commands: list[Command], say: str) -> str:
    """The branches on the command and the word before; the first that fits counts."""
    lines = ['        case "$before" in\n']
    for command in commands:
        for option, words in command.values.items():
            if option:
                said = say.format(" ".join(words))
                lines.append(f'            "{command.name} {option}") {said} ;;\n')
        free = [*command.options, *command.values.get("", [])]
        lines.append(f'            "{command.name} "*) {say.format(" ".join(free))} ;;\n')
    return "".join([*lines, "        esac\n"])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
