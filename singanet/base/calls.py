"""Calls with arguments that a function does not have: of users' functions, and by users of ours."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from singanet.base.described import refusal
from singanet.errors import SignatureError

_F = TypeVar("_F", bound=Callable[..., Any])


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


def checked_call(function: _F) -> _F:
    """``function``, or a method, that refuses in three parts what it does not take.

    Errors: `SignatureError`, as constructors have it.
    """
    signature = inspect.signature(function)
    is_method = next(iter(signature.parameters), "") == "self"
    if not is_method:
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        signature = inspect.Signature([first, *signature.parameters.values()])
    name = function.__name__
    if is_method:
        # As users write, Net.fit, FeedForwardNet.fit and GraphBuilder.add are net.fit and net.add.
        owner = function.__qualname__.split(".")[-2]
        word = re.findall("[A-Z][a-z]*", owner)[-1].lower()
        name = f"{'net' if word == 'builder' else word}.{name}"

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if never_began(error):
                given = args[1:] if is_method else args
                raise refusal(name, signature, given, kwargs, str(error)) from None
            raise

    made: Any = call
    return made
