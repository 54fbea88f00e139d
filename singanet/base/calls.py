"""Calls of functions of users' own, which may lack an argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from singanet.errors import SignatureError


def never_began(error: TypeError) -> bool:
    """Whether ``error``, caught where a function was called, is about the call's arguments.

    Then no frame of the function itself is in the traceback.
    """
    traceback = error.__traceback__
    return traceback is not None and traceback.tb_next is None


def misdefined(where: str, function: Callable[..., Any], wanted: str) -> SignatureError:
    """The error for a method that does not take what it is called with, as in ``wanted``."""
    name = getattr(function, "__name__", "method")
    method = getattr(function, "__func__", function)
    try:
        arguments = [
            argument.replace(annotation=inspect.Parameter.empty)
            for argument in inspect.signature(method).parameters.values()
        ]
        received = f"def {name}{inspect.Signature(arguments)}"
    except (TypeError, ValueError):
        received = f"{function!r}"
    return SignatureError(
        where, expected=wanted, received=received, advice="write it with these arguments"
    )
