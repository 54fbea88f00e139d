"""Loaders of arrays and generators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, SupportsIndex, TypeAlias

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.columns import Columns, by_rows, columns_of, is_frame, is_sparse
from singanet.base.described import Described, misdefined, never_began
from singanet.data.transforms import Transform, checked_transforms, transformed
from singanet.errors import ArgumentError, DataError
from singanet.types import Array

Batch: TypeAlias = tuple[Any, Any]
"""``(x, y)``: each an array, or a dict of arrays."""


class Loader(Protocol):
    """Batches by epoch, with a position that can be saved and restored.

    An iteration continues from the current position to the end of the epoch. The position counts
    the yielded batches, so a position saved during the work on a batch is the position after it.
    """

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches from the current position to the end of the epoch."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the current position."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position ``state``, a result of `state_dict`."""
        ...


def checked_rank(where: str, rank: SupportsIndex, world_size: SupportsIndex) -> tuple[int, int]:
    """Return ``(rank, world_size)`` as ints, 0 <= rank < world_size. Errors: `ArgumentError`."""
    count = checked_count(where, "world_size", world_size, 1)
    number = checked_count(where, "rank", rank, 0)
    if number >= count:
        raise ArgumentError(
            where,
            expected=f"a rank from 0 to {count - 1}",
            received=f"{number}",
            advice="number the processes from 0",
        )
    return number, count


def restored_position(
    where: str, state: Mapping[str, Any], identity: Mapping[str, int], most: int
) -> tuple[int, int]:
    """Return ``(epoch, position)`` of ``state``, saved by a loader with the same ``identity``.

    Errors: `ArgumentError` naming the entries that are missing or differ, or a position beyond
    ``most`` batches.
    """
    wanted = ["epoch", "position", *identity]
    missing = [name for name in wanted if name not in state]
    if missing:
        raise ArgumentError(
            f"{where}, state",
            expected=f"the entries {', '.join(wanted)}",
            received=f"none for {', '.join(missing)}",
            advice="load a position of this loader's state_dict()",
        )
    different = [name for name in identity if int(state[name]) != identity[name]]
    if different:
        raise ArgumentError(
            f"{where}, state",
            expected=", ".join(f"{name} {identity[name]}" for name in different),
            received=", ".join(f"{name} {int(state[name])}" for name in different),
            advice="build the loader as it was when the position was saved",
        )
    advice = "load a position of this loader's state_dict()"
    epoch = checked_count(f"{where}, state", "epoch", state["epoch"], 0, advice=advice)
    position = checked_count(f"{where}, state", "position", state["position"], 0, most, advice)
    return epoch, position


class ArrayLoader(Described):
    """A loader of batches ``(x, y)`` of arrays, frames or dicts of them, whose rows are samples.

    Each epoch has one permutation, drawn from ``(seed, epoch)`` alone. Rank *r* takes its positions
    r, r + world_size, ..., so every sample is in exactly one rank's shard, and the first ``n %
    world_size`` shards have one sample more. The k-th batches of all ranks together are the k-th
    batch of one process with ``batch_size × world_size``. If fewer samples than ranks remain at the
    end of an epoch, later ranks run one step less, unless ``drop_last`` or ``split_batches``.

    An iteration continues from the current position to the end of the epoch; the next iteration is
    the next epoch. `set_epoch` selects another.

    Args:
        x: Array (N, ...), N samples; a sparse matrix of SciPy (N, D), whose batches are
            `singanet.types.CSRMatrix`; a data frame, whose batches are columns by name, as `fit`
            and `step` accept them; or a dict of these by the names of the net's inputs.
        y: The targets of the N samples, in one of these forms except a sparse matrix.
        batch_size: Positive int, the samples in a batch of one rank; with ``split_batches`` of all
            ranks.
        shuffle: Whether each epoch has an order of its own; otherwise the order of the arrays.
        seed: Int from 0 on, the seed of the orders and of ``transforms``.
        drop_last: Whether to drop samples that do not fill a batch on every rank, so that all ranks
            run equally many steps. Otherwise the last batch is smaller.
        rank: Int, the rank of this process, from 0 to ``world_size`` - 1.
        world_size: Int, the number of processes that train together.
        split_batches: Whether each rank has a part of every batch, which may be empty. All ranks
            then run equally many steps. A position is also valid for another number of ranks if all
            ranks together have the same batch size.
        transforms: Functions of `singanet.data.transforms`, which change images ``x`` (N, C, H, W)
            in this order. An image's generator depends on seed, epoch and sample index, and on
            neither ranks nor resumption.

    Examples:
        >>> loader = singanet.data.ArrayLoader(np.zeros((10, 3)), np.arange(10), batch_size=4)
        >>> [len(y) for x, y in loader]
        [4, 4, 2]
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        split_batches: bool = False,
        transforms: Sequence[Transform] = (),
    ) -> None:
        where = "ArrayLoader"
        self.x: Array | Mapping[str, Array] = _by_rows(_read("x", x))
        self.y = _read("y", y)
        self.samples = _common_length(self.x, self.y)
        self.batch_size = checked_count(where, "batch_size", batch_size, 1)
        self.shuffle = bool(shuffle)
        self.seed = checked_count(where, "seed", seed, 0)
        self.drop_last = bool(drop_last)
        self.rank, self.world_size = checked_rank(where, rank, world_size)
        self.split_batches = bool(split_batches)
        self.transforms = checked_transforms(where, transforms)
        if self.transforms and not (isinstance(self.x, np.ndarray) and self.x.ndim == 4):
            raise ArgumentError(
                f"{where}, transforms",
                expected="images x, a NumPy array (N, C, H, W)",
                received=f"{type(self.x).__name__} {getattr(self.x, 'shape', '')}".strip(),
                advice="omit transforms, or change batches by a GeneratorLoader",
            )
        if len(self) == 0:
            raise DataError(
                where,
                expected=f"a batch for rank {self.rank} of {self.world_size}",
                received=f"{self.samples} samples, batch_size {self.batch_size}"
                + (", drop_last" if self.drop_last else ""),
                advice="use a smaller batch_size, fewer processes, or more data",
            )
        self.epoch = 0
        self.position = 0

    def __len__(self) -> int:
        """Return the batches in an epoch, for this rank."""
        if self.drop_last:
            return self.samples // self._together
        if self.split_batches:
            return -(-self.samples // self._together)
        shard = len(range(self.rank, self.samples, self.world_size))
        return -(-shard // self.batch_size)

    @property
    def _smallest_batch(self) -> int:
        """The samples of the smallest batch of this rank, the last in an epoch.

        With ``split_batches`` the smallest of any rank, apart from empty ones.
        """
        if self.split_batches:
            last = 0 if self.drop_last else self.samples % self._together
            return max((last or self._together) // self.world_size, 1)
        shard = len(range(self.rank, self.samples, self.world_size))
        rest = 0 if self.drop_last else shard % self.batch_size
        return rest or self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        order = self._order(self.epoch)
        epoch, count = self.epoch, len(self)
        together, ranks = self._together, self.world_size
        if self.position >= count:
            # The position was saved by another rank, which has one batch more.
            self.set_epoch(epoch + 1)
            return
        for k in range(self.position, count):
            # Count before the yield: a position saved while the caller works on a batch is the
            # position after it.
            self.epoch, self.position = (epoch, k + 1) if k + 1 < count else (epoch + 1, 0)
            rows = order[k * together : (k + 1) * together]
            if ranks > 1:
                rows = rows[self.rank :: ranks]
            x = self._images(epoch, rows) if self.transforms else _take(self.x, rows)
            yield x, _take(self.y, rows)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of ``epoch``, an int from 0 on."""
        self.epoch = checked_count("ArrayLoader", "epoch", epoch, 0)
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        """Return the position, and the settings that must be equal to restore it, for all ranks."""
        return {"epoch": self.epoch, "position": self.position, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position ``state`` of `state_dict`; the following batches are bit-identical.

        Errors: `ArgumentError` if the data or the settings differ; the position is then unchanged.
        """
        most = -(-self.samples // self._together)
        self.epoch, self.position = restored_position("ArrayLoader", state, self._identity(), most)

    def _images(self, epoch: int, rows: Array) -> Array:
        images: Any = self.x
        # An empty part of a batch needs the shape of transformed images too.
        made = [
            transformed(images[row], self.transforms, [self.seed, epoch, 1 + row], f"image {row}")
            for row in rows.tolist() or [0]
        ]
        return np.stack(made)[: len(rows)]

    def _identity(self) -> dict[str, int]:
        return {
            "samples": self.samples,
            "batch_size": self._together,
            "shuffle": int(self.shuffle),
            "seed": self.seed,
            "drop_last": int(self.drop_last),
        }

    @property
    def _together(self) -> int:
        """The samples of a batch of all ranks."""
        return self.batch_size * (1 if self.split_batches else self.world_size)

    def _order(self, epoch: int) -> Array:
        if not self.shuffle:
            return np.arange(self.samples)
        return np.random.default_rng([self.seed, epoch]).permutation(self.samples)


def _read(argument: str, data: Any) -> Any:
    """Return ``data`` with frames and series as arrays whose rows can be indexed."""
    if is_frame(data):
        return columns_of(f"ArrayLoader, {argument}", data)
    if isinstance(data, Mapping):
        return {name: _read(f"{argument}[{name!r}]", part) for name, part in data.items()}
    # A series would be indexed by its labels.
    return data.to_numpy() if hasattr(data, "to_numpy") else data


def _by_rows(x: Any) -> Any:
    """Return ``x`` with sparse matrices in CSR form."""
    if isinstance(x, Mapping) and not isinstance(x, Columns):
        return {name: _by_rows(part) for name, part in x.items()}
    return by_rows("ArrayLoader, x", x) if is_sparse(x) else x


def _take(data: Array | Mapping[str, Array], rows: Array) -> Any:
    if type(data) is np.ndarray:
        # `take` is faster than an index, but copies a whole array that is not contiguous.
        return data.take(rows, axis=0) if data.ndim > 1 and data.flags.c_contiguous else data[rows]
    if isinstance(data, Columns):
        return data.take(rows)
    if isinstance(data, Mapping):
        return {name: _take(array, rows) for name, array in data.items()}
    return data[rows]


def _common_length(x: Array | Mapping[str, Array], y: Array | Mapping[str, Array]) -> int:
    lengths: dict[str, int] = {}
    for argument, data in (("x", x), ("y", y)):
        named = (
            {f"{argument}[{name!r}]": array for name, array in data.items()}
            if isinstance(data, Mapping)
            else {argument: data}
        )
        for name, array in named.items():
            array = next(iter(array.values())) if isinstance(array, Columns) else array
            shape = getattr(array, "shape", ())
            if not shape:
                raise DataError(
                    f"ArrayLoader, {name}",
                    expected="an array whose first axis is the samples",
                    received=f"{type(array).__name__} without axes",
                    advice="pass numpy.asarray(...) of a batch of samples",
                )
            lengths[name] = int(shape[0])
    if len(set(lengths.values())) != 1:
        raise DataError(
            "ArrayLoader",
            expected="arrays with the same number of samples",
            received=", ".join(f"{name}: {length}" for name, length in lengths.items())
            or "no array",
            advice="give every sample a label",
        )
    return next(iter(lengths.values()))


class GeneratorLoader(Described):
    """A loader of the batches that a function ``source(epoch)`` makes, called anew for each epoch.

    The length is unknown. If ``source`` depends on the epoch alone, a restored position is exact:
    the batches before it are made again and dropped. With several processes rank *r* takes the
    batches r, r + world_size, ...; the first ranks may take one more. A position is also valid for
    another number of ranks: batches that any rank took are not repeated.

    Args:
        source: Function that takes the number of the epoch, from 0 on, and returns an iterable of
            tuples ``(x, y)``.
        rank: Int, the rank of this process, from 0 to ``world_size`` - 1.
        world_size: Int, the number of processes that train together.

    Examples:
        >>> def source(epoch):
        ...     yield np.full((2, 3), epoch), np.zeros(2)
        >>> loader = singanet.data.GeneratorLoader(source)
        >>> [float(x.mean()) for x, y in [*loader, *loader]]
        [0.0, 1.0]
    """

    _may_be_empty = False
    """Whether this process may have no batch while other processes have one."""

    def __init__(
        self, source: Callable[[int], Iterable[Batch]], rank: int = 0, world_size: int = 1
    ) -> None:
        if not callable(source):
            raise ArgumentError(
                "GeneratorLoader, source",
                expected="a function of the epoch that returns batches",
                received=f"a {type(source).__name__}",
                advice="give the function itself: a running generator ends after one epoch",
            )
        self.source = source
        self.rank, self.world_size = checked_rank("GeneratorLoader", rank, world_size)
        self.epoch = 0
        self.position = 0
        # Batches of the epoch that another number of ranks took.
        self._before = 0

    def __iter__(self) -> Iterator[Batch]:
        epoch, position, drawn = self.epoch, self.position, 0
        first = self._before + self.rank + position * self.world_size
        for batch in self._batches(epoch):
            drawn += 1
            if drawn <= first or (drawn - 1 - first) % self.world_size:
                continue
            # Count before the yield, as `ArrayLoader` does.
            position += 1
            self.epoch, self.position = epoch, position
            checked = _checked_batch(batch)
            del batch
            yield checked
            # Free the batch before making the next, or memory would contain two.
            del checked
        if not drawn and not self._may_be_empty:
            raise DataError(
                "GeneratorLoader",
                expected="at least one batch",
                received=f"none in epoch {epoch}",
                advice="return a new iterable at each call of source",
            )
        # A position saved after the last batch yields nothing: only now is the epoch's end known.
        self.set_epoch(epoch + 1)

    def _batches(self, epoch: int) -> Iterable[Batch]:
        try:
            return self.source(epoch)
        except TypeError as error:
            if never_began(error):
                wanted = "def source(epoch): a function of the number of the epoch alone"
                raise misdefined("GeneratorLoader, source", self.source, wanted) from None
            raise

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of ``epoch``."""
        self.epoch = checked_count("GeneratorLoader", "epoch", epoch, 0)
        self.position = self._before = 0

    def state_dict(self) -> dict[str, int]:
        """Return the position, and the number of ranks."""
        before, ranks = self._before, self.world_size
        return {
            "epoch": self.epoch,
            "position": self.position,
            "world_size": ranks,
            "before": before,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position ``state``, also of another number of ranks.

        Errors: `ArgumentError`.
        """
        where, most = "GeneratorLoader", 1 << 62
        epoch, position = restored_position(where, state, {}, most)
        before = checked_count(f"{where}, state", "before", state.get("before", 0), 0)
        ranks = checked_count(f"{where}, state", "world_size", state.get("world_size", 1), 1)
        if ranks != self.world_size:
            before, position = before + position * ranks, 0
        self.epoch, self.position, self._before = epoch, position, before


def _checked_batch(batch: Any) -> Batch:
    if not isinstance(batch, tuple) or len(batch) != 2:
        raise DataError(
            "GeneratorLoader",
            expected="batches that are tuples (x, y)",
            received=f"a {type(batch).__name__}"
            + (f" of {len(batch)}" if isinstance(batch, tuple) else ""),
            advice="yield x, y",
        )
    return batch
