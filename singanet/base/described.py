"""Objects that record their constructor's arguments, and convert to dictionaries and back."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from abc import ABCMeta
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar

from singanet.base.elsewhere import is_library
from singanet.base.tracebacks import entry_point, shorten
from singanet.base.words import OWN, REQUIRED, aliases, described, part_words, translated
from singanet.errors import ConfigError, SignatureError, did_you_mean

_T = TypeVar("_T", bound="Configurable")
_D = TypeVar("_D", bound="Described")
_C = TypeVar("_C")

_LONGEST = 60
_WIDEST = 100
"""The most characters of a repr."""
_DEEPEST = 4
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Codec(Protocol):
    """A converter of objects to plain data and back, in a higher room that knows every class."""

    def object_to_config(self, thing: Configurable) -> dict[str, Any]:
        """Return the class and constructor arguments of ``thing``."""

    def restored(self, entry: Any, base: type) -> Any:
        """Return the object of class ``base`` that ``entry`` describes."""


class CheckedType(ABCMeta):
    """The metaclass that refuses unknown and missing arguments by a `SignatureError`."""

    def __init__(cls, *args: Any, **kwargs: Any) -> None:
        """Make a class; append its alternative argument names to its docstring, for `help`."""
        super().__init__(*args, **kwargs)
        code = getattr(cls.__dict__.get("__init__"), "__code__", None)
        if code is not None and cls.__doc__ and is_library(cls):
            count = code.co_argcount + code.co_kwonlyargcount
            names = code.co_varnames[1:count]
            if code.co_varnames[count : count + 1] == ("shared",):
                names = (*names, *getattr(cls, "_shared", object).__annotations__)
            further = described(names)
            if further:
                cls.__doc__ = f"{inspect.cleandoc(cls.__doc__)}\n\n{further}"

    @entry_point
    def __call__(cls: type[_C], *args: Any, **kwargs: Any) -> _C:
        """Make an object. Errors: `SignatureError` for arguments that the constructor lacks.

        Copying and unpickling do not call it.
        """
        kind: Any = cls
        signature, names = _signature(kind), argument_names(kind)
        try:
            kwargs = translated(names, kwargs, part_words(kind.__init__))
            signature.bind(None, *args, **kwargs)
        except SignatureError as error:
            raise error.within(kind.__name__) from None
        except TypeError as error:
            further = part_words(kind.__init__)
            raise refusal(kind.__name__, signature, args, kwargs, str(error), further) from None
        made: _C = super().__call__(*args, **kwargs)  # type: ignore[misc]
        if isinstance(made, Described):
            made._constructed()
        return made

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's own arguments, for `help`, `inspect.signature` and editors."""
        kind: Any = cls
        signature = _written(kind)
        arguments = [each for each in signature.parameters.values() if not _is_words(each)][1:]
        by_name = inspect.Parameter.KEYWORD_ONLY
        further = part_words(kind.__init__)
        arguments += [inspect.Parameter(word, by_name, default=None) for word in further]
        return signature.replace(parameters=arguments, return_annotation=inspect.Signature.empty)


class Described(metaclass=CheckedType):
    """Stores the constructor's arguments, by name, in ``arguments``, without defaults."""

    arguments: dict[str, Any]
    _always_shown: ClassVar[tuple[str, ...]] = ()
    """Settings that a repr shows even if they are the default."""
    _moved: ClassVar[tuple[str, ...]] = ()
    """Settings that training changes: a repr shows the constructor's value."""
    _always_written: ClassVar[tuple[str, ...]] = ()
    """Settings that every description has, since their default has changed. A class attribute of
    the same name has the old default, for older descriptions and pickles without the setting."""
    _moving: ClassVar[tuple[str, ...]] = ()
    """Attributes that the object changes: its state, and values derived from settings."""
    _shared: ClassVar[Any] = None
    """A TypedDict of arguments that constructors pass on as ``**shared``, if any. A class attribute
    is the default of each."""

    def __new__(cls: type[_D], *args: Any, **kwargs: Any) -> _D:
        """Make the object, and store its arguments."""
        made = super().__new__(cls)
        kind: Any = cls
        signature = _signature(kind)
        try:
            bound = signature.bind(made, *args, **kwargs).arguments
        except TypeError:
            # A copy, which gets its attributes from the original.
            bound = {}
        made.arguments = {}
        for name, value in list(bound.items())[1:]:
            many = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            made.arguments.update(value if many else {name: value})
        return made

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The attribute of an argument by another of its words, such as ``lr``."""
            kind = type(self)
            words = _redirected(kind) or aliases(argument_names(kind))
            here = None if name[0] == "_" else words.get(name)
            if here is not None:
                return getattr(self, here)
            from singanet.base.elsewhere import missing_attribute

            return missing_attribute(self, name)

    def _constructed(self) -> None:
        """Run after the constructor; not for copies."""

    def _shown_settings(self) -> dict[str, Any]:
        """Return the current settings: an attribute of the same name precedes the argument.

        Omitted arguments are included if they are no longer the default.
        """
        found = {}
        for name, parameter in list(_signature(type(self)).parameters.items())[1:]:
            if parameter.kind in _MANY:
                continue
            given = name in self.arguments
            before = self.arguments[name] if given else parameter.default
            now = before if name in self._moved else getattr(self, name, before)
            changed = type(now) is type(before) and is_plain(now) and now != before
            if given or changed or name in self._always_shown:
                found[name] = now if is_plain(now) or isinstance(now, Described) else before
        return found

    def _called(self, depth: float, room: float) -> str:
        """Return the call that makes the object, in ``room`` characters; see `shown`.

        Arguments of the arguments are included ``depth`` levels deep.
        """
        settings = self._shown_settings()
        bare = [*itertools.takewhile(settings.__contains__, _needed(type(self)))]
        return shown(type(self).__name__, settings, bare=bare, depth=depth, room=room)

    def __repr__(self) -> str:
        return self._called(_DEEPEST, _WIDEST)


class Configurable(Described):
    """Described objects that files can store too."""

    def to_config(self) -> dict[str, Any]:
        """Return class and arguments as JSON types, with later values of attributes.

        Errors: `ConfigError` for a class that is neither singanet's nor registered, for arguments
        that are not data, such as functions, and for an attribute that no argument sets.
        """
        return _codec().object_to_config(self)

    def _constructed(self) -> None:
        """Store the attributes after construction, to detect later assignments."""
        keep(self, vars(self))

    def _twin(self: _T, arguments: Mapping[str, Any]) -> _T:
        """Return a new object with these ``arguments``; a layer is built if this one is."""
        return type(self)(**arguments)

    @classmethod
    def from_config(cls: type[_T], config: Mapping[str, Any]) -> _T:
        """Make an object from the result of `to_config`, of this class or a subclass.

        Errors: `ConfigError`, `UnknownNameError`, and the errors of the constructor.
        """
        made: _T = _codec().restored(config, cls)
        return made


AS_CONSTRUCTED = "_as_constructed"
_MISSING = object()


def keep(thing: Configurable, names: Iterable[str], but: Collection[str] = ()) -> None:
    """Store the attributes ``names`` of ``thing``, except ``but``, as constructed values."""
    own = vars(thing)
    kept = {name: _copied(own[name]) for name in names if name[0] != "_" and name not in but}
    own[AS_CONSTRUCTED] = {**own.get(AS_CONSTRUCTED, {}), **kept}


def assigned_to(thing: Configurable) -> dict[str, Any]:
    """Return the attributes of ``thing`` that were assigned or changed after construction.

    Attributes that it changes itself are excluded. In a class that is not singanet's only
    attributes named as an argument of the constructor count: others may be its running values.
    """
    kind, kept = type(thing), vars(thing).get(AS_CONSTRUCTED, {})
    found = {}
    for name, value in vars(thing).items():
        if name[0] == "_" or name in ("arguments", *thing._moving):
            continue
        if name in kept:
            changed = not _unchanged(kept[name], value)
        else:
            # It overrides an attribute of the class, such as a method.
            changed = bool(kept) and hasattr(kind, name)
        if changed and (is_library(kind) or name in _signature(kind).parameters):
            found[name] = value
    return found


def settings_of(thing: Configurable) -> dict[str, Any]:
    """Return the arguments that construct an object equal to ``thing``, as it is now.

    Errors: `ConfigError` for an attribute that no argument sets.
    """
    assigned = assigned_to(thing)
    if not assigned:
        return thing.arguments
    taken = _signature(type(thing)).parameters
    given = {name: value for name, value in assigned.items() if name in taken}
    first, arguments = next(iter(assigned)), {**thing.arguments, **given}
    try:
        twin = thing._twin(arguments)
    except Exception as error:
        raise _no_argument(thing, next(iter(given), first), str(error)) from error
    names = vars(thing)[AS_CONSTRUCTED].keys() | assigned
    for name in sorted(names, key=lambda name: name not in assigned):
        ours, theirs = (vars(each).get(name, _MISSING) for each in (thing, twin))
        its_own = name in ("arguments", *thing._moving) or not is_library(type(thing))
        if (name in assigned or not its_own) and not _alike(ours, theirs):
            name = name if name in assigned else first
            text = _text(assigned[name], _DEEPEST)
            raise _no_argument(thing, name, f"{text}, assigned to it later")
    return arguments


def _no_argument(thing: Configurable, name: str, received: str) -> ConfigError:
    kind = type(thing).__name__
    return ConfigError(
        f"{kind}, attribute {name!r}",
        expected="a value from an argument of the constructor",
        received=received[:200],
        advice=f"construct a {kind} with these settings",
    )


def _copied(value: Any) -> Any:
    """Return ``value`` with copies of its lists and dicts, for a later comparison."""
    if isinstance(value, list):
        return [_copied(part) for part in value]
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    return value


def _unchanged(kept: Any, now: Any) -> bool:
    if isinstance(now, Configurable):
        return now is kept and not assigned_to(now)
    return kept is now or _equal(kept, now, _unchanged)


def _alike(ours: Any, theirs: Any) -> bool:
    if ours is theirs:
        return True
    if isinstance(ours, Configurable) and type(ours) is type(theirs):
        return _alike(settings_of(ours), settings_of(theirs))
    # Functions cannot be compared, and count as alike.
    compare: Any = type(ours).__eq__
    unknown = type(ours) is type(theirs) and compare is object.__eq__
    return unknown or _equal(ours, theirs, _alike)


def _equal(one: Any, two: Any, parts: Callable[[Any, Any], bool]) -> bool:
    """Return whether two values are equal; ``parts`` compares elements of containers."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(parts(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(map(parts, one, two))
    arrays = [each for each in (one, two) if hasattr(each, "dtype")]
    if arrays:
        import numpy as np  # One of them is an array, so it is imported already.

        # Sparse matrices have a dtype too. They are not compared, and count as changed.
        return all(hasattr(each, "__array__") for each in arrays) and np.array_equal(one, two)
    try:
        return isinstance(one, bool) == isinstance(two, bool) and bool(one == two)
    except (TypeError, ValueError):
        # Frames, for example, compare by elements. They count as changed too.
        return False


def shown(
    name: str,
    settings: Mapping[str, Any],
    *first: str,
    bare: Collection[str] = (),
    depth: float = _DEEPEST,
    room: float = _WIDEST,
) -> str:
    """Format ``name(first, setting=value, ...)`` in ``room`` characters, arrays by their shapes.

    If it is longer, all but the first argument of each object become ``...``, the innermost first,
    then the last settings. ``depth`` is the deepest level at which all arguments are included;
    settings in ``bare`` come first, without their names.
    """
    while True:
        texts = {key: _text(value, depth) for key, value in settings.items()}
        parts = [*first, *(texts.pop(key) for key in bare)]
        parts += [f"{key}={text}" for key, text in texts.items()]
        text = f"{name}({', '.join(parts)})"
        if len(text) <= room or depth <= 0:
            break
        depth -= 1
    while len(text) > room and len(parts) > 1:
        parts.pop()
        text = f"{name}({', '.join(parts)}, ...)"
    return text


def settings_text(thing: object) -> str:
    """Return all settings of ``thing``, without addresses, which differ between processes."""
    text = _text(thing, math.inf) if isinstance(thing, Described) else repr(thing)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _text(value: Any, depth: float) -> str:
    if isinstance(value, Described):
        return value._called(depth - 1, math.inf if depth > 0 else 0)
    if isinstance(value, Mapping):
        parts = (f"{key!r}: {_text(part, depth)}" for key, part in value.items())
        text = "{" + ", ".join(parts) + "}"
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"<{value.dtype} {tuple(value.shape)}>"
    elif inspect.isroutine(value):
        return value.__name__
    else:
        text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def is_plain(value: Any) -> bool:
    """Return whether ``value`` is None, a number, a string, or a tuple or list of these."""
    if isinstance(value, (tuple, list)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


@cache
def _needed(cls: Any) -> list[str]:
    """Return the names of the constructor's first arguments, up to one that has a default."""
    free = inspect.Parameter("_", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [*_signature(cls).parameters.values()][1:]
    return [
        p.name
        for p in itertools.takewhile(
            lambda p: p.replace(name="_", annotation=p.empty) == free, given
        )
    ]


@cache
def _written(cls: Any) -> inspect.Signature:
    """Return the constructor's signature, with shared arguments."""
    if cls.__init__ is object.__init__:
        only_self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        return inspect.Signature([only_self])
    signature = inspect.signature(cls.__init__)
    arguments = [*signature.parameters.values()]
    last = arguments[-1]
    if last.kind is last.VAR_KEYWORD and last.name == "shared" and cls._shared is not None:
        parts = part_words(cls.__init__)
        arguments[-1:] = [
            inspect.Parameter(name, last.KEYWORD_ONLY, default=OWN, annotation=kind.__forward_arg__)
            for name, kind in cls._shared.__annotations__.items()
            if name not in parts
        ]
    return signature.replace(
        parameters=[
            each.replace(default=getattr(cls, each.name)) if each.default is OWN else each
            for each in arguments
        ]
    )


def _is_words(parameter: inspect.Parameter) -> bool:
    """Whether it stands for the further words, of which `translated` leaves none."""
    return parameter.kind is inspect.Parameter.VAR_KEYWORD and parameter.name == "words"


@cache
def _signature(cls: Any) -> inspect.Signature:
    """Return the signature for calls: `REQUIRED` arguments and names have no default."""
    signature, needed = _written(cls), inspect.Parameter.empty
    arguments = [each for each in signature.parameters.values() if not _is_words(each)]
    if any(each.default is REQUIRED for each in arguments):
        for k, each in enumerate(arguments):
            if each.default is REQUIRED or (k == 1 and each.name == "name"):
                arguments[k] = each.replace(default=needed)
    return signature.replace(parameters=arguments)


@cache
def argument_names(cls: Any) -> tuple[str, ...]:
    """Return the names of the arguments, with the base class's if they are passed on."""
    signature = _signature(cls)
    arguments = [*signature.parameters.values()][1:]
    names = [each.name for each in arguments if each.kind not in _MANY]
    hands_on = any(each.kind is each.VAR_KEYWORD for each in arguments)
    above = next((k for k in cls.__mro__[1:] if isinstance(k, CheckedType)), None)
    return (*names, *(argument_names(above) if hands_on and above is not None else ()))


def refusal(
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    error: str,
    further: Iterable[str] = (),
) -> SignatureError:
    """Make the error for the arguments ``args`` and ``kwargs`` from Python's text ``error``."""
    taken = list(signature.parameters.values())[1:]
    names = [parameter.name for parameter in taken]
    needed = [p.name for p in taken if p.default is p.empty and p.kind not in _MANY]
    unknown = next((key for key in kwargs if key not in names), None)
    missing = [key for key in needed[len(args) :] if key not in kwargs]
    if unknown is not None:
        # Imported here, since only errors need the names of other libraries.
        from singanet.base.elsewhere import advice_on

        received, advice = f"{unknown}=", advice_on(unknown, [*names, *further])
    elif missing:
        received = f"nothing for {' and '.join(missing)}"
        from singanet.base.elsewhere import advice_on_none

        written = f"write {name}({', '.join(f'{key}=...' for key in needed if key != 'name')})"
        advice = ("" if args or kwargs else advice_on_none(name)) or written
    else:
        received, advice = error, "pass each argument once, the later ones by name"
    expected = f"the arguments {', '.join(names)}" if names else "no arguments"
    return SignatureError(name, expected=expected, received=received, advice=advice)


def passed_up(
    thing: object, kind: type, argument: str, value: Any, words: Mapping[str, Any]
) -> Any:
    """Return ``argument`` of ``kind``'s constructor from ``words``, by another name, or ``value``.

    A user's class calls the constructor directly, past `CheckedType`. Errors: `SignatureError` for
    any other word.
    """
    found = translated(argument_names(kind), words)
    value = found.pop(argument, value)
    if found:
        error = f"{', '.join(found)} by another name"
        raise refusal(type(thing).__name__, _signature(kind), (), found, error)
    return value


_codec: Callable[[], Codec]


def use_codec(codec: Callable[[], Codec]) -> None:
    """Let `Configurable.to_config` and `from_config` use the result of ``codec()``.

    The package sets it once, as a function, since importing its classes takes time.
    """
    global _codec
    _codec = codec


_count = itertools.count(1)
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Changes:
    """A counter: ``now`` is a new number after each `add`, in any thread."""

    def __init__(self) -> None:
        self.now = 0

    def add(self) -> None:
        """Count a change."""
        self.now = next(_count)

    def moment(self) -> Moment:
        """Count a change, and return its number."""
        self.add()
        return Moment(self.now)


class Moment(int):
    """The count at a change. In a process that unpickles it, later changes have higher counts."""

    def __reduce__(self) -> tuple[Callable[[int], Moment], tuple[int]]:
        return _past, (int(self),)


def _past(count: int) -> Moment:
    global _count
    if count >= changes.now:
        _count = itertools.count(count + 1)
        changes.add()
    return Moment(count)


changes = Changes()
"""Counts changes of parameters, layers, losses and optimizers; programs check only after one."""


class CountedType(CheckedType):
    """The metaclass that counts every assignment to a class attribute, such as a method."""

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        changes.add()

    def __delattr__(cls, name: str) -> None:
        super().__delattr__(name)
        changes.add()


@cache
def _redirected(cls: Any) -> dict[str, str]:
    """Return the aliases of attributes; in users' classes only those of the base class.

    Their other attributes may mean something else.
    """
    bases = (kind for kind in reversed(cls.__mro__) if isinstance(kind, CountedType))
    base = next((kind for kind in bases if argument_names(kind)), cls)
    own = argument_names(cls if is_library(cls) else base)
    return aliases(own) | aliases(tuple(getattr(cls, "_asked_anew", ())))


def _expect_attribute(thing: Counted, name: str) -> None:
    """Refuse an attribute ``name`` that is misspelled or of the rule inside a stage.

    Nothing would read it. Other unknown attributes are a user's own. Errors: `NoAttributeError`.
    """
    kind = type(thing)
    if AS_CONSTRUCTED not in vars(thing) or hasattr(kind, name) or not is_library(kind):
        return
    from singanet.base.elsewhere import NoAttributeError, expect_here

    expect_here(thing, name)
    known = [each for each in vars(thing) if each[0] != "_"]
    advice = did_you_mean(name, known, "")
    inner, way = vars(thing).get("optimizer"), ".optimizer"
    while inner is not None:
        rule: Any = type(inner)
        if name in vars(inner) or name in _redirected(rule):
            advice = f"assign {way}.{name}, of the {rule.__name__} inside"
        inner, way = vars(inner).get("optimizer"), f"{way}.optimizer"
    if advice:
        raise NoAttributeError(
            kind.__name__,
            expected="an existing attribute to assign",
            received=f".{name}",
            advice=advice,
        )


class Counted(metaclass=CountedType):
    """Objects that count assignments to public attributes, methods and the class as changes.

    Assignments to names in ``_asked_anew`` do not count: these are read again at each use.
    """

    _asked_anew: Collection[str] = ()
    _fixed_names: ClassVar[bool] = False
    """Whether the constructor makes all attributes, so that a misspelled one is refused."""

    def __setattr__(self, name: str, value: Any) -> None:
        public = name[0] != "_"
        if public:
            name = _redirected(type(self)).get(name, name)
            if self._fixed_names and name not in vars(self):
                _expect_attribute(self, name)
        super().__setattr__(name, value)
        if public:
            if name not in self._asked_anew:
                changes.add()
        elif callable(getattr(type(self), name, None)) or name == "__class__":
            changes.add()

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        changes.add()


def _counting(name: str) -> Callable[..., Any]:
    inner = getattr(dict, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = inner(self, *args, **kwargs)
        changes.add()
        return made

    method.__doc__ = "Like the method of dict."
    return method


class CountedDict(dict[_Key, _Value]):
    """A dict that counts every change of its contents."""


for _name in (
    "__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update",
):  # fmt: skip
    setattr(CountedDict, _name, _counting(_name))


_F = TypeVar("_F", bound=Callable[..., Any])
_P = ParamSpec("_P")
_S = TypeVar("_S")
_O = TypeVar("_O")
_R = TypeVar("_R")


def never_began(error: TypeError) -> bool:
    """Return whether ``error``, caught at a call, is about the call's arguments.

    Then no frame of the function itself is in the traceback.
    """
    traceback = error.__traceback__
    return traceback is not None and traceback.tb_next is None


def misdefined(where: str, function: Callable[..., Any], wanted: str) -> SignatureError:
    """Make the error for a method whose arguments differ from ``wanted``."""
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
    """Wrap ``function`` so that wrong arguments raise a `SignatureError`, as in constructors."""
    signature = inspect.signature(function)
    is_method = next(iter(signature.parameters), "") == "self"
    if not is_method:
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        signature = inspect.Signature([first, *signature.parameters.values()])
    name = _as_called(function) if is_method else function.__name__

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                if not never_began(error):
                    raise
                words = translated(tuple(signature.parameters), kwargs)
                if words.keys() == kwargs.keys():
                    given = args[1:] if is_method else args
                    raise refusal(name, signature, given, kwargs, str(error)) from None
            return call(*args, **words)
        except BaseException as error:
            shorten(error, name)
            raise

    made: Any = call
    return made


def made_of(
    kind: Callable[_P, _O],
) -> Callable[[Callable[[_S, _O], _R]], Callable[Concatenate[_S, _P], _R]]:
    """Decorate a method of one object of class ``kind`` to take the arguments of ``kind``.

    So they are defined once. `help`, `inspect.signature`, editors and type checkers show each with
    its default. Errors: `SignatureError`, as for `checked_call`.
    """

    def around(method: Callable[[_S, _O], _R]) -> Callable[Concatenate[_S, _P], _R]:
        own = next(iter(inspect.signature(method).parameters.values()))
        taken = inspect.signature(kind).parameters.values()
        signature = inspect.signature(method).replace(parameters=[own, *taken])
        name = _as_called(method)

        @wraps(method)
        def call(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                try:
                    signature.bind(self, *args, **kwargs)
                except TypeError as error:
                    raise refusal(name, signature, args, kwargs, str(error)) from None
                return method(self, kind(*args, **kwargs))
            except BaseException as error:
                shorten(error, name)
                raise

        vars(call)["__signature__"] = signature
        return call

    return around


def _as_called(method: Callable[..., Any]) -> str:
    """Return the name of a method as users write it: net.fit for FeedForwardNet.fit."""
    owner = method.__qualname__.split(".")[-2]
    word = re.findall("[A-Z][a-z]*", owner)[-1].lower()
    return f"{'net' if word == 'builder' else word}.{method.__name__}"


_WITHOUT_PARTS = frozenset((str, int, float, bool, tuple, type(None)))
"""Types of most attributes."""


def with_inner(part: Counted) -> list[Any]:
    """``part``, and the layers, losses, ... among its attributes and in lists and dicts there."""
    # By the class of their classes: abstract ones ask all below them about each new type.
    found = [part]
    for one in found:
        for name, value in vars(one).items():
            if type(value) in _WITHOUT_PARTS:
                continue
            if isinstance(type(value), CountedType):
                inside: Iterable[Any] = (value,)
            elif isinstance(value, dict) and name != "arguments":
                inside = value.values()
            elif type(value) is list:
                inside = value
            else:
                continue
            for inner in inside:
                if isinstance(type(inner), CountedType) and all(
                    inner is not known for known in found
                ):
                    found.append(inner)
    return found
