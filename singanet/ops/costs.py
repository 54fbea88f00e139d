"""Keep the costs of kernels on this machine, in one table and its file.

Estimates use `Speeds`, which `singanet.ops.onednn.calibration` measures at first need. A route that
`singanet.program.tuning` measured for a `Case` has precedence over estimates.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from singanet.base.processes import cache_folder, free_in_children
from singanet.errors import FileAccessError
from singanet.ops.kernel import cheapest
from singanet.ops.threads import limit
from singanet.ops.window import Window
from singanet.types import Shape

KERNELS = ("forward", "data", "weights", "constant")
"""A convolution, the gradients of images and of weight, a convolution of constant weight."""

ROUTES = ("direct", "compiled", "product", "blocked", "numpy")
"""oneDNN's convolution; Winograd's transforms in compiled functions; a product of matrices;
oneDNN's with images in a layout of its own; NumPy's kernels."""


class Case(NamedTuple):
    """A kernel of `KERNELS` in float32; ``x`` is (N, C, H, W), ``weight`` (F, C/groups, kh, kw)."""

    kernel: str
    x: Shape
    weight: Shape
    window: Window


Choices = Mapping[Case, str]
"""A route of `ROUTES` for each case."""


_USUAL = 1 << 20

ADDS_A_PASS = 64
"""float32 multiply-adds in the time of one memory access of a kernel."""

_FEW_PIXELS = 49
"""Largest number of pixels for which oneDNN reads the whole weight for each image."""


_PAYS = 1.25
"""The speed-up over float32 from which bfloat16 products, whose factors are rounded, pay."""


class Speeds(NamedTuple):
    """The times of one thread in nanoseconds.

    Processors differ in the speeds of arithmetic and of strided copies independently, so the
    fastest route differs too.
    """

    direct: float
    """A multiplication in oneDNN's convolution."""
    weight: float
    """An element of the weight that oneDNN reorders."""
    distant: float
    """An element of a weight larger than the cache, read for each image of few pixels."""
    narrow: float
    """A bfloat16 multiplication in a matrix product, if the processor supports it."""
    narrow_direct: float
    """A bfloat16 multiplication in oneDNN's convolution."""
    tile_value: float
    """A Winograd value of a tile and a channel; the products cost ``direct``."""
    tile_kernel: float
    """A Winograd value of a kernel, to transform or transform back."""
    shared: float
    """The time of a kernel on two threads beyond half of its time on one."""

    @property
    def narrow_gain(self) -> float:
        """The speed of a bfloat16 product relative to float32."""
        return self.direct / self.narrow

    @property
    def _narrow_pays(self) -> bool:
        """Whether the gain is enough for "auto" to choose bfloat16."""
        return self.narrow_gain >= _PAYS

    @property
    def narrow_adds_a_pass(self) -> int:
        """`ADDS_A_PASS` for bfloat16."""
        return round(ADDS_A_PASS * max(1.0, self.narrow_gain))

    def direct_time(self, images: int, pixels: int, weight: int, arranged: bool = False) -> float:
        """Return the nanoseconds of a convolution to ``pixels`` of each image.

        ``weight`` is the number of its elements; ``arranged`` means that they have oneDNN's layout.
        """
        reads = images * self.distant if is_read_often(pixels, weight) else 0
        return weight * (self.direct * images * pixels + reads + (0 if arranged else self.weight))


def is_read_often(pixels: int, weight: int) -> bool:
    """Whether a ``weight`` larger than the cache is read again for each small image."""
    return pixels <= _FEW_PIXELS and 4 * weight > cache_size()


@cache
def cache_size() -> int:
    """Return the bytes of a core's own cache; a usual size if the system does not report it."""
    try:
        return os.sysconf("SC_LEVEL2_CACHE_SIZE") or _USUAL
    except (AttributeError, ValueError, OSError):  # Windows has another call, macOS no such name
        return _USUAL


BUILT_IN = Speeds(0.0162, 0.6, 0.0, 0.004, 0.004, 0.3, 0.55, 15_000.0)
"""Speeds fitted to `net.tune_kernels` of vgg11, resnet18, resnet20, resnet50, googlenet, wrn-16-4.

On an AMD EPYC, 244 kernels; four of five estimates are within a quarter. Other machines measure.
"""


class Costs:
    """The costs of kernels on this machine: speeds for estimates, and measured routes.

    Both are read from the file when the first convolution needs them.
    """

    def __init__(self) -> None:
        self.version = 0
        self._choices: dict[int, Choices] | None = None
        self._speeds: Speeds | None = None
        self._lock = free_in_children(threading.Lock())

    def speeds(self, runtime: Any, measure: Callable[[Any], Speeds]) -> Speeds:
        """Return the speeds of the file; measure and store them if it has none.

        Without a file the built-in speeds serve: processes that measured for themselves would
        choose different routes, with different last bits.
        """
        if self._speeds is None:
            with self._lock:
                self._speeds = self._speeds or self._found(runtime.library, measure)
        return self._speeds

    def _found(self, library: Any, measure: Callable[[Any], Speeds]) -> Speeds:
        if path_of(library.version) is None:
            return BUILT_IN
        known = read(library.version).speeds
        with suppress(FileAccessError):
            return known or keep(library.version, speeds=measure(library)) or BUILT_IN
        return BUILT_IN

    def choose(self, ops: Any, case: Case, estimates: Mapping[str, float]) -> str:
        """Return the measured route, or the cheapest estimate; bfloat16 has no measured routes."""
        if ops.narrow:
            return _narrow(ops.speeds(), estimates)
        runtime = ops.runtime()
        chosen = "" if runtime is None else self.choices(runtime).get(case, "")
        return chosen if chosen in estimates else cheapest(estimates)

    def choices(self, runtime: Any) -> Choices:
        """Return the measured routes for the thread count of ``runtime``."""
        if self._choices is None:
            self._choices = read(runtime.library.version).choices
        return self._choices.get(runtime.threads, _NONE)

    def adopt(self, choices: Choices, runtime: Any) -> None:
        """Add ``choices`` to the file and use them from now on."""
        keep(runtime.library.version, runtime.threads, choices)
        joined = {**self.choices(runtime), **choices}
        self._choices = {**(self._choices or {}), runtime.threads: joined}
        self.version += 1

    def remark(self, runtime: Any) -> str:
        """Return a line with the number of measured choices in use and the path of their file."""
        count, path = len(self.choices(runtime)), path_of(runtime.library.version)
        if path is None:
            return f"convolutions as estimated, {why_none()}"
        if not count:
            return "convolutions as estimated, none measured: singanet tune"
        return f"{count} convolutions as measured with {runtime.threads} threads, {path}"


_NONE: Choices = {}


def direct(estimates: Mapping[str, float]) -> str:
    """Return oneDNN's own convolution if it is possible, otherwise the cheapest route."""
    return "direct" if "direct" in estimates else cheapest(estimates)


def _narrow(speeds: Speeds, estimates: Mapping[str, float]) -> str:
    """Return the cheapest bfloat16 route, or float32 in tiles if that is cheaper.

    If neither is possible, return the cheapest of all. Estimates are multiples of the time of the
    direct float32 route.
    """
    rates = {
        "direct": speeds.narrow_direct / speeds.direct,
        "product": speeds.narrow / speeds.direct,
        "compiled": 1.0,
    }
    return cheapest({k: rates[k] * v for k, v in estimates.items() if k in rates} or estimates)


VARIABLE = "SINGANET_ROUTES"
"""The environment variable with the path of the file, or 'off' for estimates alone."""

OFF = "off"

_FORMAT = "singanet routes"
_VERSION = 4
_MOST_BYTES = 1 << 23
_DTYPE = "float32"

_SLOWEST = 1e6
"""An upper bound of valid speeds in nanoseconds."""


class Content(NamedTuple):
    """The choices by thread count, and the processor's speeds if stored."""

    choices: dict[int, Choices]
    speeds: Speeds | None = None


class NotRoutesError(ValueError):
    """The file's content is damaged, or of another kind."""


def path_of(onednn: str) -> Path | None:
    """Return the path of the routes file for this machine and oneDNN version, or None."""
    named = os.environ.get(VARIABLE, "")
    if named:
        return None if named == OFF else Path(named)
    folder = cache_folder()
    if folder is None:
        return None
    # Each version has a file of its own.
    told = {**machine(onednn), "version": _VERSION}
    mark = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]
    return folder / f"routes-{mark}.json"


def why_none() -> str:
    """Return the reason for `path_of` to be None."""
    if os.environ.get(VARIABLE, "") == OFF:
        return f"{VARIABLE}={OFF}"
    return f"{VARIABLE} unset, and no absolute HOME or XDG_CACHE_HOME"


def machine(onednn: str) -> dict[str, str]:
    """Return the conditions under which measured times are valid."""
    limited = limit()
    return {
        "processor": processor() + (f", {limited} at most" if limited else ""),
        "onednn": onednn,
    }


@lru_cache(maxsize=1)
def processor() -> str:
    """Return the processor's name and the numbers of its generation, if the system reports them."""
    found = cpu_info()
    wanted = ("vendor_id", "model name", "cpu family", "model", "CPU part")
    told = [found[key] for key in wanted if key in found] or [platform.processor()]
    return ", ".join([*told, platform.machine()])


def cpu_info() -> dict[str, str]:
    """Return the system's description of the first core by key; empty if it has none."""
    found: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if not key.strip():
                    break  # the other cores
                found[key.strip()] = value.strip()
    except OSError:
        pass
    return found


def read(onednn: str) -> Content:
    """Return the file's content; empty without a file, or after a warning if it is not valid."""
    path = path_of(onednn)
    if path is None:
        return Content({})
    try:
        return _content(path, onednn)
    except FileNotFoundError:
        return Content({})
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        warnings.warn(
            f"measured routes in {str(path)!r} are not used: {reason}; `singanet tune` "
            f"measures them anew, {VARIABLE}={OFF} disables them",
            RuntimeWarning,
            stacklevel=3,
        )
        return Content({})


def _content(path: Path, onednn: str) -> Content:
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise NotRoutesError("not a plain file, and a pipe may never end")
    with path.open("rb") as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise NotRoutesError("the file is too large")
    content = json.loads(text)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise NotRoutesError("it is another kind of file")
    if content.get("version") != _VERSION:
        raise NotRoutesError(f"its version is {content.get('version')!r}, not {_VERSION}")
    if content.get("machine") != machine(onednn):
        raise NotRoutesError(f"measured on {content.get('machine')!r}, not on {machine(onednn)!r}")
    return Content(read_entries(content.get("choices")), _speeds_of(content.get("speeds")))


def _speeds_of(entry: Any) -> Speeds | None:
    if entry is None:
        return None
    if not isinstance(entry, dict) or set(entry) != set(Speeds._fields):
        raise NotRoutesError("its speeds are damaged")
    if not all(type(speed) is float and 0 <= speed < _SLOWEST for speed in entry.values()):
        raise NotRoutesError("its speeds are damaged")
    return Speeds(**entry)


def keep(
    onednn: str, threads: int = 1, choices: Choices = _NONE, speeds: Speeds | None = None
) -> Speeds | None:
    """Add choices and speeds to the file, written atomically; return the file's speeds.

    Stored speeds are not replaced. Errors: `FileAccessError`.
    """
    # A local import: kernels do not write files.
    from singanet.base.files import explained, replacing

    path, known = path_of(onednn), read(onednn)
    assert path is not None
    kept = known.speeds or speeds
    content: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "machine": machine(onednn),
        "choices": entries_of(
            {**known.choices, threads: {**known.choices.get(threads, {}), **choices}}
        ),
    }
    if kept is not None:
        content["speeds"] = kept._asdict()
    with explained(path, "write"):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")
    return kept


def entries_of(choices: Mapping[int, Choices]) -> list[dict[str, Any]]:
    """Return one dict for each choice."""
    return [
        {
            "threads": threads,
            "dtype": _DTYPE,
            "kernel": case.kernel,
            "x": case.x,
            "weight": case.weight,
            "kernel_size": case.window.kernel,
            "stride": case.window.stride,
            "pads": case.window.pads,
            "dilation": case.window.dilation,
            "groups": case.window.groups,
            "route": route,
        }
        for threads, by_case in sorted(choices.items())
        for case, route in by_case.items()
    ]


def read_entries(entries: Any) -> dict[int, Choices]:
    """Return the argument of `entries_of`. Errors: `NotRoutesError`."""
    if not isinstance(entries, list):
        raise NotRoutesError("it has no list of choices")
    found: dict[int, dict[Case, str]] = {}
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not _is_sound(entry):
            raise NotRoutesError(f"choice {number} is damaged")
        sizes = (entry["kernel_size"], entry["stride"])
        pads = (_pair(entry["pads"][0]), _pair(entry["pads"][1]))
        spread, groups = _pair(entry["dilation"]), entry["groups"]
        window = Window(_pair(sizes[0]), _pair(sizes[1]), pads, spread, groups=groups)
        shapes = tuple(entry["x"]), tuple(entry["weight"])
        case = Case(entry["kernel"], *shapes, window)
        found.setdefault(entry["threads"], {})[case] = entry["route"]
    return dict(found)


def _pair(values: list[int]) -> tuple[int, int]:
    return values[0], values[1]


def _is_sound(entry: dict[str, Any]) -> bool:
    pads = entry.get("pads")
    return (
        entry.get("dtype") == _DTYPE
        and entry.get("kernel") in KERNELS
        and entry.get("route") in ROUTES
        and _are_counts([entry.get("threads"), entry.get("groups")], 2)
        and all(_are_counts(entry.get(key), 4) for key in ("x", "weight"))
        and all(_are_counts(entry.get(key), 2) for key in ("kernel_size", "stride", "dilation"))
        and isinstance(pads, list)
        and len(pads) == 2
        and all(_are_counts(pair, 2, least=0) for pair in pads)
    )


def _are_counts(values: Any, length: int, least: int = 1) -> TypeGuard[list[int]]:
    if not isinstance(values, list) or len(values) != length:
        return False
    return all(type(value) is int and value >= least for value in values)
