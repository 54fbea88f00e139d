"""Errors in three parts: expected, received, and advice."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from typing import Any


class SingaNetError(Exception):
    """Base of every error that singanet raises for a user's mistake.

    ``where`` names the layer, file or argument; the other three parts are attributes too, so that a
    program can read them.
    """

    def __init__(self, where: str, *, expected: str, received: str, advice: str) -> None:
        super().__init__()
        self.expected = expected
        self.received = received
        self.advice = advice
        self._place(where)

    def within(self, where: str) -> SingaNetError:
        """Return the same error with ``where`` before its own."""
        return self._again(f"{where}, {self.where}", self.advice)

    def advising(self, advice: str) -> SingaNetError:
        """Return the same error with another ``advice``, for another caller."""
        return self._again(self.where, advice)

    def _place(self, where: str) -> None:
        """Set ``where``, and the text of the error."""
        self.where = where
        text = f"{where}: expected {self.expected}; received {self.received}; {self.advice}"
        self.args = (text,)

    def _again(self, where: str, advice: str) -> SingaNetError:
        """Return a new error whose traceback still has a user's frames."""
        made = type(self)(where, expected=self.expected, received=self.received, advice=advice)
        return made.with_traceback(self.__traceback__)


class ShapeError(SingaNetError, ValueError):
    """An array or a sample shape does not fit its layer, loss or parameter."""


class ArgumentError(SingaNetError, ValueError):
    """An argument has a value or type that the function does not accept."""


class SignatureError(ArgumentError, TypeError):
    """A constructor got unknown arguments, or lacks required ones."""


class GraphError(SingaNetError, ValueError):
    """The layers do not form a directed acyclic graph with unique names."""


class UnknownNameError(SingaNetError, LookupError):
    """The name of a layer, parameter, model, optimizer or option does not exist."""


class CallOrderError(SingaNetError, RuntimeError):
    """A method was called before the one it depends on."""


class DataError(SingaNetError, ValueError):
    """Data or labels cannot be trained on, or a data file is invalid."""


class CheckpointError(SingaNetError):
    """Base of the errors about checkpoint files."""


class FileFormatError(CheckpointError, ValueError):
    """A checkpoint file is damaged, truncated, or of another format."""


class UnsafeFileError(FileFormatError):
    """A checkpoint file has contents that weights never need: code, links, huge claims."""


class ChecksumError(FileFormatError):
    """The bytes of an array differ from the written ones."""


class VersionError(FileFormatError):
    """A checkpoint file was written by a newer library than this one."""


class StateMismatchError(CheckpointError, ValueError):
    """The arrays of a checkpoint do not fit the arrays of the net; nothing was loaded.

    ``report`` is the `checkpoint.LoadReport` of `net.load`, with a table of all arrays; None for
    other functions.
    """

    report: Any = None


class FileAccessError(CheckpointError, OSError):
    """A checkpoint file cannot be opened, written or moved into place."""


class ConfigError(SingaNetError, ValueError):
    """A net cannot be described as data, or data do not describe a net."""


class BackendError(SingaNetError, RuntimeError):
    """A requested backend or optional package is missing or does not work."""


class OutOfMemoryError(SingaNetError, MemoryError):
    """A parameter's array does not fit into the free memory."""


class RankError(SingaNetError, RuntimeError):
    """Processes that train together differ, or one of them no longer responds."""


class RankLostError(RankError):
    """A process that trains with this one has ended or died, while others wait for it."""


def one_of(names: Iterable[str], limit: int = 12) -> str:
    """Return a text that lists names, each once.

    Args:
        names: The names.
        limit: Maximum number of names; the text then ends with their count.
    """
    known = list(dict.fromkeys(names))
    shown = ", ".join(repr(name) for name in known[:limit])
    return shown + (f", ... ({len(known)} in all)" if len(known) > limit else "")


def brief(value: object) -> str:
    """Return ``value`` for an error: a line of at most 200 characters, an array by its shape.

    Args:
        value: Any object.
    """
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"an array of shape {shape}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else f"{text[:199]}…"


def did_you_mean(name: str, names: Iterable[str], otherwise: str) -> str:
    """Return advice with the known name closest to ``name``.

    Of equally close names, such as resnet20 and resnet32 to resnet21, it is the one with the
    nearest number at its end.

    Args:
        name: The unknown name.
        names: The known names.
        otherwise: The advice if no known name is close.
    """
    known: dict[str, str] = {}
    for each in names:
        known.setdefault(each.lower(), each)
    said = str(name).lower()

    def last_number(name: str) -> int:
        digits = name[len(name.rstrip("0123456789")) :]
        return int(digits[:9] or 0)

    close = get_close_matches(said, list(known), n=10)
    ratios = [SequenceMatcher(None, each, said).ratio() for each in close]
    as_close = [each for each, ratio in zip(close, ratios, strict=True) if ratio == ratios[0]]
    close = sorted(as_close, key=lambda each: abs(last_number(each) - last_number(said)))
    return f"did you mean {known[close[0]]!r}?" if close else otherwise


def __dir__() -> list[str]:
    """Return the public names that this module defines."""
    own = {k for k, v in globals().items() if getattr(v, "__module__", "") == __name__}
    return sorted(own - {"__dir__"})
