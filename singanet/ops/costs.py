"""The one table of what kernels cost on a machine, and the file that keeps it.

An estimate goes by `Speeds`, which `singanet.ops.onednn.calibration` measures at the first need. A
route that `singanet.program.tuning` measured for a `Case` is taken whatever is estimated.
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
"""A convolution, the gradients of its images and of its weight; one whose weight is constant."""

ROUTES = ("direct", "compiled", "product", "blocked", "numpy")
"""oneDNN's convolution; Winograd's transforms in compiled functions; a product of matrices;
oneDNN's with images in a layout of its own; NumPy's kernels."""


class Case(NamedTuple):
    """One of `KERNELS` in float32: images ``x`` (N, C, H, W), ``weight`` (F, C/groups, kh, kw)."""

    kernel: str
    x: Shape
    weight: Shape
    window: Window


Choices = Mapping[Case, str]
"""One of `ROUTES` for each case."""


_USUAL = 1 << 20

ADDS_A_PASS = 64
"""Multiply-adds of float32 in the time in which a kernel goes over a number in memory."""

_FEW_PIXELS = 49
"""Pixels of an image up to which oneDNN goes over the whole weight for each image."""


_PAYS = 1.25
"""Times the speed of float32 from which products of bfloat16 pay, whose factors are rounded."""


class Speeds(NamedTuple):
    """Nanoseconds of one thread.

    Processors differ in the speed of arithmetic and, independently, in that of copies with strides:
    so the fastest route differs too.
    """

    direct: float
    """A multiplication in oneDNN's convolution."""
    weight: float
    """A number of the weight that oneDNN rearranges."""
    distant: float
    """One of a weight larger than the cache, which is read for each image of few pixels."""
    narrow: float
    """A multiplication of bfloat16 in a product, where the processor has such."""
    narrow_direct: float
    """One in oneDNN's convolution."""
    tile_value: float
    """One of the values of a tile and a channel of Winograd's; products are as direct."""
    tile_kernel: float
    """One of the values of a kernel there, entered or left."""
    shared: float
    """What a kernel of two threads takes beyond half of its time with one."""

    @property
    def narrow_gain(self) -> float:
        """How many times as fast as float32 a product of bfloat16 is."""
        return self.direct / self.narrow

    @property
    def _narrow_pays(self) -> bool:
        """Whether that is enough for "auto" to ask for them."""
        return self.narrow_gain >= _PAYS

    @property
    def narrow_adds_a_pass(self) -> int:
        """As `ADDS_A_PASS`, of bfloat16."""
        return round(ADDS_A_PASS * max(1.0, self.narrow_gain))

    def direct_time(self, images: int, pixels: int, weight: int, arranged: bool = False) -> float:
        """Nanoseconds of a convolution to ``pixels`` of each image, by so many numbers of weight.

        ``arranged`` says that the weight is as oneDNN likes it already.
        """
        reads = images * self.distant if is_read_often(pixels, weight) else 0
        return weight * (self.direct * images * pixels + reads + (0 if arranged else self.weight))


def is_read_often(pixels: int, weight: int) -> bool:
    """Whether so many numbers of weight, larger than the cache, are read for each small image."""
    return pixels <= _FEW_PIXELS and 4 * weight > cache_size()


@cache
def cache_size() -> int:
    """Bytes of the cache that a core has for itself, as far as the system says."""
    try:
        return os.sysconf("SC_LEVEL2_CACHE_SIZE") or _USUAL
    except (AttributeError, ValueError, OSError):  # Windows asks otherwise, macOS has no such name
        return _USUAL


BUILT_IN = Speeds(0.0162, 0.6, 0.0, 0.004, 0.004, 0.3, 0.55, 15_000.0)
"""What fits `net.tune_kernels` of vgg11, resnet18, resnet20, resnet50, googlenet and wrn-16-4.

On an AMD EPYC, 244 kernels, four of five within a quarter; elsewhere they are measured.
"""


class Costs:
    """What kernels cost here: speeds to estimate by, and the routes that were measured.

    Both are read from the file when a convolution first asks.
    """

    def __init__(self) -> None:
        self.version = 0
        self._choices: dict[int, Choices] | None = None
        self._speeds: Speeds | None = None
        self._lock = free_in_children(threading.Lock())

    def speeds(self, runtime: Any, measure: Callable[[Any], Speeds]) -> Speeds:
        """The speeds in the file, where they are kept for the next process once measured.

        Without such a file the speeds are built in: speeds measured anew in each process would
        choose other routes, and give other bits, in each.
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
        """As measured, else the cheapest by estimate; of bfloat16 nothing is measured."""
        if ops.narrow:
            return _narrow(ops.speeds(), estimates)
        runtime = ops.runtime()
        chosen = "" if runtime is None else self.choices(runtime).get(case, "")
        return chosen if chosen in estimates else cheapest(estimates)

    def choices(self, runtime: Any) -> Choices:
        """The measured routes for the number of threads of ``runtime``."""
        if self._choices is None:
            self._choices = read(runtime.library.version).choices
        return self._choices.get(runtime.threads, _NONE)

    def adopt(self, choices: Choices, runtime: Any) -> None:
        """Keep these in the file, and use them from now on, besides those that there are."""
        keep(runtime.library.version, runtime.threads, choices)
        joined = {**self.choices(runtime), **choices}
        self._choices = {**(self._choices or {}), runtime.threads: joined}
        self.version += 1

    def remark(self, runtime: Any) -> str:
        """How many choices are in use, and where they lie."""
        count, path = len(self.choices(runtime)), path_of(runtime.library.version)
        if path is None:
            return f"convolutions as estimated, {why_none()}"
        if not count:
            return "convolutions as estimated, none measured: singanet tune"
        return f"{count} convolutions as measured with {runtime.threads} threads, {path}"


_NONE: Choices = {}


def direct(estimates: Mapping[str, float]) -> str:
    """oneDNN's own convolution where it is open, else the cheapest."""
    return "direct" if "direct" in estimates else cheapest(estimates)


def _narrow(speeds: Speeds, estimates: Mapping[str, float]) -> str:
    """The cheapest route that multiplies bfloat16, or float32 in tiles if that is cheaper.

    If there are neither the cheapest of all. Estimates are multiples of what float32 takes by the
    direct route.
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
"""Nanoseconds that no speed reaches."""


class Content(NamedTuple):
    """The choices by number of threads, and the processor's speeds if they were kept."""

    choices: dict[int, Choices]
    speeds: Speeds | None = None


class NotRoutesError(ValueError):
    """What was read is not what was once written."""


def path_of(onednn: str) -> Path | None:
    """Where the routes of this machine lie for that version of oneDNN; None as `why_none` says."""
    named = os.environ.get(VARIABLE, "")
    if named:
        return None if named == OFF else Path(named)
    folder = cache_folder()
    if folder is None:
        return None
    # A file of another version lies beside, and is none of ours.
    told = {**machine(onednn), "version": _VERSION}
    mark = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]
    return folder / f"routes-{mark}.json"


def why_none() -> str:
    """Why `path_of` is None."""
    if os.environ.get(VARIABLE, "") == OFF:
        return f"{VARIABLE}={OFF}"
    return f"{VARIABLE} unset, and no absolute HOME or XDG_CACHE_HOME"


def machine(onednn: str) -> dict[str, str]:
    """The conditions under which measured times hold."""
    limited = limit()
    return {
        "processor": processor() + (f", {limited} at most" if limited else ""),
        "onednn": onednn,
    }


@lru_cache(maxsize=1)
def processor() -> str:
    """The processor's name with the numbers that tell its generation, as far as the system says."""
    wanted = ("vendor_id", "model name", "cpu family", "model", "CPU part")
    found: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if not key.strip():
                    break  # the other cores
                if key.strip() in wanted:
                    found[key.strip()] = value.strip()
    except OSError:
        pass
    told = [found[key] for key in wanted if key in found] or [platform.processor()]
    return ", ".join([*told, platform.machine()])


def read(onednn: str) -> Content:
    """What the file holds; nothing where there is none, or a warning says why it is not used."""
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
            f"measures them anew, {VARIABLE}={OFF} does without",
            RuntimeWarning,
            stacklevel=3,
        )
        return Content({})


def _content(path: Path, onednn: str) -> Content:
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise NotRoutesError("no plain file, and a pipe may never end")
    with path.open("rb") as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise NotRoutesError("a file of that size")
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
    """Add these to the file, which is written anew, whole or not at all; the speeds in it.

    Speeds that are there stay. Errors: `FileAccessError`.
    """
    # Needed here alone; kernels do not write files.
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
    with replacing(path) as beside:
        beside.write_text(json.dumps(content, indent=1) + "\n")
    return kept


def entries_of(choices: Mapping[int, Choices]) -> list[dict[str, Any]]:
    """One dict a choice."""
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
    """What `entries_of` was given. Errors: `NotRoutesError`."""
    if not isinstance(entries, list):
        raise NotRoutesError("it holds no list of choices")
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
