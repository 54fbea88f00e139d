"""Names and layouts of PyTorch's state dicts, matched to a net's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from singanet.checkpoint.entry import Entry, Source
from singanet.checkpoint.layer_arrays import LayerDescription, Variable
from singanet.checkpoint.reader import Reader
from singanet.errors import ArgumentError, UnknownNameError, brief, did_you_mean, one_of
from singanet.types import Array

_COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class _Place:
    """The place of our array in the file: part ``index`` of the split ``variable``.

    ``ordered``: only the order of the modules determined it.
    """

    key: str
    variable: Variable
    index: int
    ordered: bool = False


class TorchView(Reader):
    """The arrays of ``reader`` with the names of ``layers`` and in our layouts.

    A module matches the layer of its name, with dots for slashes, before or after ``rename``, which
    maps modules, folders of modules or single arrays to ours. Other modules match by unique shapes,
    and modules of one shape by the numbers in their names if both sides have the same numbers.
    ``by_order`` matches the rest by order, with numbers in names compared as numbers. Arrays of no
    layer keep their names. ``folder`` is the dict of a training that contains the arrays.

    Errors: `ArgumentError` if several modules may match a layer, if a training has several state
    dicts or no ``folder``, or if PyTorch has no such layer; `UnknownNameError`.
    """

    format = "torch"

    def __init__(
        self,
        reader: Reader,
        layers: Sequence[LayerDescription],
        rename: Mapping[str, str],
        folder: str | None = None,
        by_order: bool = False,
    ) -> None:
        super().__init__(reader.path)
        self.where, self.version = reader.where, reader.version
        self._reader = reader
        self._by_order = by_order
        self._ordered: set[str] = set()
        self._places: dict[str, _Place] = {}
        self._start = self._chosen(folder)
        self._unmatched = {
            name.removeprefix(self._start): entry
            for name, entry in reader.entries.items()
            if name.startswith(self._start) and name.rpartition(".")[2] != _COUNTER
        }
        places = _arrays(layers)
        folders = self._take_arrays(rename, places)
        self._take_arrays({key: key for key in [*self._unmatched] if key in places}, places)
        self._take_modules([each for each in layers if not self._has(each)], folders)
        self.entries.update(self._unmatched)

    @property
    def rules(self) -> dict[str, str]:
        """The origin of each of our arrays in the file, for a report."""
        return {
            name: f"{place.key!r} in PyTorch's layout{', by order' * place.ordered}"
            for name, place in self._places.items()
        }

    def _read(self, entry: Entry) -> Array:
        place = self._places.get(entry.name)
        if place is None:
            return self._reader.read(self._start + entry.name)
        array = self._reader.read(self._start + place.key)
        if array.shape != place.variable.shape:
            return array
        return np.ascontiguousarray(place.variable.split(array)[place.index])

    def _has(self, layer: LayerDescription) -> bool:
        return all(name in self.entries for name, _ in layer.params.values())

    def _chosen(self, folder: str | None) -> str:
        """Return the prefix of the names in the state dict."""
        names = self._reader.entries
        if self._reader.format != "torch" and folder is None:
            return ""
        above = dict.fromkeys(name.rpartition("/")[0] for name in names)
        # An optimizer's state is numbered.
        dicts = [each for each in above if not any(part.isdigit() for part in each.split("/"))]
        dotted = {name.rpartition("/")[0] for name in names if "." in name.rpartition("/")[2]}
        found = [each for each in dicts if each in dotted] or dicts
        if folder is not None:
            found = [folder] if any(name.startswith(f"{folder}/") for name in names) else found
        if len(found) != 1 or folder not in (None, found[0]):
            raise ArgumentError(
                f"{self.where}, argument key",
                expected="the name of one state dict in this training",
                received=f"{folder!r} among {one_of(found or above)}",
                advice=f"pass for example key={next(iter(found or above))!r}",
            )
        return f"{found[0]}/" if found[0] else ""

    def _take_arrays(
        self, rename: Mapping[str, str], places: Mapping[str, tuple[LayerDescription, str]]
    ) -> dict[str, str]:
        """Place the single arrays of ``rename``; return the rest of it, modules."""
        folders = {}
        for key, ours in rename.items():
            layer, suffix = places.get(ours, (None, ""))
            variable = layer.single(suffix) if layer else None
            if key in self._unmatched and variable is not None:
                self._place(key, _Place(key, variable, 0), ours, places[ours])
                continue
            known = [*self._unmatched, *_modules(self._unmatched)]
            within = any(each == key or each.startswith(f"{key}.") for each in known)
            there = key not in self._unmatched and within
            names = [*places, *(layer.name for layer, _ in places.values())]
            if not there or not any(each == ours or each.startswith(f"{ours}/") for each in names):
                wrong, among = (ours, names) if there or key in self._unmatched else (key, known)
                raise UnknownNameError(
                    f"{self.where}, argument rename",
                    expected=f"arrays or modules of the file, and ours: {one_of(among)}",
                    received=brief(wrong),
                    advice=did_you_mean(wrong, among, "rename goes from the file to the net"),
                )
            folders[key] = ours
        return folders

    def _place(self, key: str, place: _Place, name: str, of: tuple[LayerDescription, str]) -> None:
        entry = self._unmatched.get(key) or self._reader.entries[self._start + key]
        ours = of[0].shape(of[1])
        shape = ours if entry.shape == place.variable.shape else entry.shape
        self.entries.setdefault(name, entry._replace(name=name, shape=shape))
        self._places.setdefault(name, place)
        if place.index == len(place.variable.parts) - 1:
            self._unmatched.pop(key, None)

    def _take_modules(self, layers: Sequence[LayerDescription], folders: Mapping[str, str]) -> None:
        by_name = {layer.name: layer for layer in layers}
        wanted = {layer.name: {each.path: each for each in layer.variables} for layer in layers}
        modules = _modules(self._unmatched, wanted.values())
        for name, path in self._pairs(wanted, modules, folders).items():
            layer = by_name[name]
            for leaf, variable in wanted[name].items():
                key = f"{path}.{leaf}" if path else leaf
                for index, suffix in enumerate(variable.parts):
                    place = _Place(key, variable, index, name in self._ordered)
                    self._place(key, place, layer.full(suffix), (layer, suffix))

    def _pairs(
        self,
        wanted: Mapping[str, Mapping[str, Variable]],
        modules: dict[str, dict[str, Entry]],
        folders: Mapping[str, str],
    ) -> dict[str, str]:
        """Return the module of each layer."""
        kinds = {path: _kind(found) for path, found in modules.items()}
        ours = {name: _kind(found) for name, found in wanted.items()}
        pairs: dict[str, str] = {}
        for start in _wrappers(modules):
            spelled = {_renamed(path.removeprefix(start), folders): path for path in modules}
            for name in wanted:
                path = spelled.get(name.replace("/", "."))
                if name not in pairs and path is not None and kinds[path][0] == ours[name][0]:
                    pairs[name] = path
        free = _counted_up([path for path in modules if path not in pairs.values()])
        rest = [name for name in wanted if name not in pairs]
        same_kinds = [kinds[path][0] for path in free] == [ours[name][0] for name in rest]
        if self._by_order and same_kinds:
            self._ordered.update(rest)
            return pairs | dict(zip(rest, free, strict=True))
        for sizes in dict.fromkeys(ours[name][1] for name in rest):
            there = [path for path in free if kinds[path][1] == sizes]
            here = [name for name in rest if ours[name][1] == sizes]
            pairs |= self._of_one_size(here, there)
        if same_kinds and not any(name in pairs for name in rest):
            # Nothing fits: the report then shows both sides.
            return pairs | dict(zip(rest, free, strict=True))
        return pairs

    def _of_one_size(self, here: list[str], there: list[str]) -> dict[str, str]:
        """Match layers and modules of one shape.

        Errors: `ArgumentError` if only their order could match them.
        """
        if len(here) == len(there) == 1:
            return {here[0]: there[0]}
        by_number = {_numbers(path): path for path in there}
        same = {_numbers(name) for name in here} == by_number.keys()
        if same and len(by_number) == len(here) == len(there):
            return {name: by_number[_numbers(name)] for name in here}
        if not there:
            return {}
        raise ArgumentError(
            f"{self.where}, layer {here[0]!r}",
            expected="one matching module, by name, by shape or by the number in its name",
            received=one_of(there),
            advice=f"pass rename={{{there[0]!r}: {here[0]!r}}} and so on, give the layers the names"
            " of the modules, or pass by_order=True if both have the same order",
        )


def _arrays(layers: Sequence[LayerDescription]) -> dict[str, tuple[LayerDescription, str]]:
    return {name: (layer, suffix) for layer in layers for suffix, (name, _) in layer.params.items()}


def _modules(
    entries: Mapping[str, Entry], wanted: Iterable[Iterable[str]] = ()
) -> dict[str, dict[str, Entry]]:
    """Return the arrays of each module by their names in it.

    The arrays of a layer may be in nested modules, as in ``wanted``; they are one module if all
    exist.
    """
    nested = {frozenset(leaves) for leaves in wanted}
    places: dict[str, tuple[str, str]] = {}
    for leaves in sorted(nested, key=len, reverse=True):
        dotted = min((leaf for leaf in leaves if "." in leaf), default=None)
        for key in entries if dotted is not None else ():
            path = f".{key}".removesuffix(f".{dotted}").removeprefix(".")
            whole = {f"{path}.{leaf}" if path else leaf: (path, leaf) for leaf in leaves}
            if key in whole and entries.keys() >= whole.keys():
                for name, place in whole.items():
                    places.setdefault(name, place)
    found: dict[str, dict[str, Entry]] = {}
    for key, entry in entries.items():
        above, _, last = key.rpartition(".")
        path, leaf = places.get(key, (above, last))
        found.setdefault(path, {})[leaf] = entry
    return found


def _numbers(name: str) -> tuple[int, ...]:
    """Return the numbers in a name."""
    return tuple(int(digits) for digits in re.findall(r"[0-9]{1,18}", name))


def _counted_up(paths: list[str]) -> list[str]:
    """Return ``paths`` unchanged; if they are sorted as strings, sort their numbers as numbers.

    A file that sorts its names has 10 before 2.
    """
    if paths != sorted(paths):
        return paths
    parts = {path: re.split(r"([0-9]{1,18})", path) for path in paths}
    return sorted(
        paths, key=lambda p: [(int(x), "") if k % 2 else (0, x) for k, x in enumerate(parts[p])]
    )


def _kind(found: Mapping[str, Entry] | Mapping[str, Variable]) -> tuple[object, object]:
    """Return a module's key for its kind, and its key for kind and size."""
    sizes = frozenset((leaf, each.shape) for leaf, each in found.items())
    return frozenset((leaf, len(shape)) for leaf, shape in sizes), sizes


def _wrappers(paths: Iterable[str]) -> list[str]:
    """Return common prefixes of ``paths``, such as ``module.``, from the empty to the longest."""
    first, *others = [path.split(".") for path in paths] or [[""]]
    found = [""]
    for count in range(1, len(first)):
        if any(other[:count] != first[:count] for other in others):
            break
        found.append(".".join([*first[:count], ""]))
    return found


def _renamed(path: str, folders: Mapping[str, str]) -> str:
    """Replace the longest of ``folders`` that contains ``path``."""
    inside = [each for each in folders if path == each or path.startswith(f"{each}.")]
    longest = max(inside, key=len, default="")
    return (folders.get(longest, "") + path[len(longest) :]).replace("/", ".")


def torch_sources(
    layers: Sequence[LayerDescription], params: Sequence[Any], rename: Mapping[str, str]
) -> list[Source]:
    """Return the arrays of ``params`` with names and layouts of a state dict.

    A layer's slashes become dots; ``rename`` maps our layers, or folders of layers, to modules.
    Errors: `ArgumentError` if PyTorch has no such layer, or if two names are equal.
    """
    by_name = {param.name: param for param in params}
    folders = {ours.replace("/", "."): theirs for ours, theirs in rename.items()}
    found = []
    for layer in layers:
        path = _renamed(layer.name.replace("/", "."), folders)
        for variable in layer.variables:
            parts = [by_name[layer.full(suffix)] for suffix in variable.parts]
            dtype = np.dtype(parts[0].array_type).newbyteorder("<")
            fetch = partial(_joined, variable, parts)
            found.append(Source(f"{path}.{variable.path}", variable.shape, dtype, fetch))
    return found


def _joined(variable: Variable, parts: Sequence[Any]) -> Array:
    arrays = [param.peek() for param in parts]
    arrays = [a.get() if hasattr(a, "get") else a for a in arrays]
    return np.ascontiguousarray(variable.join(*arrays))
