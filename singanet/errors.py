"""Errors in three parts: what was expected, what came, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from typing import Any


class SingaNetError(Exception):
    """Base of every error singanet raises for a user's mistake.

    ``where`` names the layer, file or argument; the other three parts are kept as attributes
    so that a program can read them.
    """

    def __init__(self, where: str, *, expected: str, received: str, advice: str) -> None:
        super().__init__(f"{where}: expected {expected}; received {received}; {advice}")
        self.where = where
        self.expected = expected
        self.received = received
        self.advice = advice

    def within(self, where: str) -> SingaNetError:
        """The same error with ``where`` put before what it names."""
        return type(self)(
            f"{where}, {self.where}",
            expected=self.expected,
            received=self.received,
            advice=self.advice,
        )

    def advising(self, advice: str) -> SingaNetError:
        """The same error with another ``advice``, for those who meet it elsewhere."""
        return type(self)(self.where, expected=self.expected, received=self.received, advice=advice)


class ShapeError(SingaNetError, ValueError):
    """An array or a sample shape does not fit the layer, loss or parameter it meets."""


class ArgumentError(SingaNetError, ValueError):
    """An argument has a value or type that the function cannot take."""


class SignatureError(ArgumentError, TypeError):
    """A constructor was given arguments that it does not have, or lacks some that it needs."""


class GraphError(SingaNetError, ValueError):
    """The layers do not form a directed acyclic graph with unique names."""


class UnknownNameError(SingaNetError, LookupError):
    """A name that nothing carries: a layer, parameter, model, optimizer or option."""


class CallOrderError(SingaNetError, RuntimeError):
    """A method was called before the one it depends on."""


class DataError(SingaNetError, ValueError):
    """Data or labels that cannot be trained on, or a data file that is not what it claims."""


class CheckpointError(SingaNetError):
    """Base of the errors about checkpoint files."""


class FileFormatError(CheckpointError, ValueError):
    """A checkpoint file is damaged, truncated, or not what it claims to be."""


class UnsafeFileError(FileFormatError):
    """A checkpoint file asks for what reading weights never needs: code, links, huge claims."""


class ChecksumError(FileFormatError):
    """The bytes of an array are not those that were written."""


class VersionError(FileFormatError):
    """A checkpoint file was written by a newer library than this one."""


class StateMismatchError(CheckpointError, ValueError):
    """The arrays of a checkpoint do not fit those of the net; nothing was loaded.

    ``report`` is the `checkpoint.LoadReport` of `net.load`, with a table of all arrays; None from
    elsewhere.
    """

    report: Any = None


class FileAccessError(CheckpointError, OSError):
    """A checkpoint file cannot be opened, written or moved into place."""


class ConfigError(SingaNetError, ValueError):
    """A net that cannot be described as data, or data that describe no net."""


class BackendError(SingaNetError, RuntimeError):
    """A backend or optional package that was asked for by name is missing or does not work."""


class OutOfMemoryError(SingaNetError, MemoryError):
    """A parameter's array does not fit into the memory that is left."""


class RankError(SingaNetError, RuntimeError):
    """Processes that train together do different things, or one of them no longer answers."""


class RankLostError(RankError):
    """A process that trains with this one has ended or died, and others wait for it."""


def one_of(names: Iterable[str], limit: int = 12) -> str:
    """``names`` as a readable list, each once, cut after ``limit``."""
    known = list(dict.fromkeys(names))
    shown = ", ".join(repr(name) for name in known[:limit])
    return shown + (f", ... ({len(known)} in all)" if len(known) > limit else "")


def did_you_mean(name: str, names: Iterable[str], otherwise: str) -> str:
    """Advice that names the closest of ``names``, or ``otherwise`` if none is close.

    Of names as close as each other, such as resnet20 and resnet32 to resnet21, that with the
    nearest number at its end is meant.
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
