"""Training and validation batches, from the arguments of `fit`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from singanet.base.arguments import MESSAGES, are_messages
from singanet.base.columns import is_frame
from singanet.data import Dataset, GeneratorLoader
from singanet.engine.feeds import is_buffer
from singanet.engine.net import Net
from singanet.errors import ArgumentError, DataError, ShapeError, brief
from singanet.training.batches import (
    ArrayBatches,
    Batches,
    IteratedBatches,
    by_name,
    cut,
    ended,
    fed,
    joined_weight,
    keeps_position,
    output_names,
    parts_of,
    sample_count,
)
from singanet.training.options import FitOptions
from singanet.training.ranks import ProcessGroup

_VALIDATION = "net.fit, validation_data"


def holds_arrays(x: Any) -> bool:
    """Return whether ``x`` contains the samples themselves, instead of yielding batches."""
    if is_frame(x):
        return True
    if isinstance(x, (list, tuple)):
        return not (x and isinstance(x[0], tuple))
    return isinstance(x, Mapping) or hasattr(x, "shape") or is_buffer(x) or not _yields(x)


def training_batches(
    net: Net, options: FitOptions, ranks: ProcessGroup, begun: Iterator[Any] | None = None
) -> tuple[Batches, Batches | None]:
    """Return batches to train on, and batches to validate on.

    Each of the ``ranks`` gets its part of every batch of arrays. ``begun`` is a started iteration
    of a source, which the first pass continues.

    Errors: an argument for arrays together with a source of batches; arrays that do not fit
    together; a split that leaves nothing on either side.
    """
    x, y = options.x, options.y
    if not holds_arrays(x):
        refuse_with_batches(
            "net.fit",
            y=y,
            sample_weight=options.sample_weight,
            split=options.validation_split or None,
            drop_last=options.drop_last or None,
        )
        data = iterated(
            net,
            x,
            options.steps_per_epoch,
            options.class_weight,
            ranks,
            True,
            begun=begun,
            largest=options.largest,
        )
        return data, _validation_batches(net, options, ranks)
    x, y, weight, count = _arrays(net, x, y, options.sample_weight, learns=True)
    own = ranks.part_of(x=x, y=y, sample_weight=weight)
    seed = ranks.of_first(net.seed, "the seed")
    kept = _split_at(count, options.validation_split)
    size, validation = options.batch_size, None
    if kept < count:
        back, part = slice(kept, None), slice(0, kept)
        validation = ArrayBatches(
            cut(x, back), cut(y, back), cut(weight, back), size, False, 0, part=own
        )
        x, y, weight = cut(x, part), cut(y, part), cut(weight, part)
    weight = joined_weight(y, weight, options.class_weight)
    batches = ArrayBatches(
        x,
        y,
        weight,
        size,
        options.shuffle,
        seed,
        options.steps_per_epoch,
        bool(options.drop_last),
        own,
    )
    return batches, validation or _validation_batches(net, options, ranks)


def _validation_batches(net: Net, options: FitOptions, ranks: ProcessGroup) -> Batches | None:
    """Return batches of ``(x, y)``, ``(x, y, sample_weight)`` or a source, in their own order."""
    data, batch_size = options.validation_data, options.micro_batch or options.batch_size
    if data is None:
        return None
    if isinstance(data, (tuple, list)) and len(data) in (2, 3) and holds_arrays(data[0]):
        weight = data[2] if len(data) == 3 else None
        return array_batches(net, data[0], data[1], weight, batch_size, ranks, _VALIDATION)
    if holds_arrays(data):
        raise ArgumentError(
            _VALIDATION,
            expected="(x, y), (x, y, sample_weight) or batches",
            received=f"a {type(data).__name__}"
            + (f" of length {len(data)}" if isinstance(data, (tuple, list)) else ""),
            advice="pass validation_data=(x_val, y_val)",
        )
    return iterated(net, data, None, None, ranks, where=_VALIDATION)


def array_batches(
    net: Net,
    x: Any,
    y: Any,
    sample_weight: Any,
    batch_size: int,
    ranks: ProcessGroup,
    where: str = "net.fit",
) -> ArrayBatches:
    """Return this rank's part of batches of arrays, in their own order."""
    x, y, weight, _ = _arrays(net, x, y, sample_weight, where=where)
    own = ranks.part_of(x=x, y=y, sample_weight=weight)
    return ArrayBatches(x, y, joined_weight(y, weight, None), batch_size, False, 0, part=own)


def iterated(
    net: Net,
    source: Any,
    steps: int | None,
    class_weight: Mapping[int, float] | None,
    ranks: ProcessGroup,
    learns: bool = False,
    where: str = "net.fit",
    begun: Iterator[Any] | None = None,
    largest: int | None = None,
) -> Batches:
    """Return this rank's batches of a loader, iterable, or function of the epoch."""
    ranks.expect_own_part("data", source)
    loader = _loader(source)
    if learns and net.pending:
        first, begun = first_of(where, loader)
        fed(f"{where}, batch x", net, parts_of(where, first)[0], True)
    made = ranks.share(
        IteratedBatches(net, loader, steps, class_weight, learns, begun, where, largest)
    )
    if loader is not source:
        loader._may_be_empty = made._may_be_empty
    return made


def take_shape(net: Net, x: Any) -> None:
    """Build a list of layers for the data ``x`` of a fit, if these can be read before it.

    A loader that cannot go back is skipped: its first batch would be lost.
    """
    if not net.pending:
        return
    if holds_arrays(x):
        fed("net.fit, x", net, x, learns=True)
    elif keeps_position(x):
        first, _ = first_of("net.fit", x)
        fed("net.fit, batch x", net, parts_of("net.fit", first)[0], learns=True)


def _loader(source: Any) -> Any:
    return source if hasattr(source, "__iter__") else GeneratorLoader(source)


def first_of(where: str, source: Any) -> tuple[Any, Iterator[Any] | None]:
    """Return the first batch, and its iteration, or None if the source repeats the batch.

    The iteration is to be continued: some loaders have only one, or draw anew for each. Errors:
    `DataError` without any batch.
    """
    loader = _loader(source)
    position = loader.state_dict() if keeps_position(loader) else None
    batches = iter(loader)
    first = next(batches, None)
    if first is None:
        raise ended(where, "at least one batch", "none")
    if position is None:
        return first, chain([first], batches)
    loader.load_state_dict(position)
    return first, None


def _yields(x: Any) -> bool:
    return (hasattr(x, "__iter__") and not isinstance(x, (str, bytes))) or callable(x)


def _arrays(
    net: Net, x: Any, y: Any, weight: Any, learns: bool = False, where: str = "net.fit"
) -> tuple[Any, Any, Any, int]:
    indexed = hasattr(x, "__getitem__") and not hasattr(x, "shape")
    if y is None and indexed and not isinstance(x, (Mapping, list, tuple)):
        raise ArgumentError(
            f"{where}, x",
            expected="arrays, or an iterable of batches",
            received=f"a {type(x).__name__}, whose items are read by index",
            advice="if items are samples, pass torch.utils.data.DataLoader(x, batch_size=32);"
            " if they are batches, lambda epoch: (x[i] for i in range(len(x)))",
        )
    if y is None and isinstance(x, Dataset):
        raise ArgumentError(
            f"{where}, x",
            expected="arrays, or an iterable of batches",
            received=f"the Dataset {x.name!r}",
            advice="pass data.x_train, data.y_train",
        )
    if y is None:
        raise ArgumentError(
            where,
            expected="targets y with arrays x",
            received="y=None",
            advice=MESSAGES
            if are_messages(x)
            else "pass y; to rebuild the input itself pass it twice",
        )
    try:
        x = fed(f"{where}, x", net, x, learns)
    except ShapeError as error:
        # Samples of one number have fewer axes than their targets only if they are labels.
        if getattr(x, "ndim", 0) == 1 and getattr(y, "ndim", 0) > 1:
            raise error.advising(f"x and y may be swapped: write {where}(x, y)") from None
        raise
    y = by_name(f"{where}, y", y, output_names(net), all_of_them=False)
    weight = joined_weight(y, weight, None)
    return x, y, weight, sample_count({"x": x, "y": y, "sample_weight": weight}, where=where)


def _split_at(count: int, split: float) -> int:
    if not isinstance(split, (int, float)) or not 0.0 <= split < 1.0:
        raise ArgumentError(
            "net.fit, validation_split",
            expected="a share in [0, 1)",
            received=brief(split),
            advice="0.2 validates on the last fifth of the samples",
        )
    kept = math.floor(count * (1.0 - split)) if split else count
    if split and kept in (0, count):
        raise DataError(
            "net.fit, validation_split",
            expected="samples on both sides of the split",
            received=f"{kept} to train on and {count - kept} to validate with, of {count}",
            advice="choose another split, or pass validation_data",
        )
    return kept


def refuse_with_batches(where: str, **given: Any) -> None:
    """Refuse an argument that only arrays can use, together with a source of batches."""
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(
                f"{where}, {'validation_split' if name == 'split' else name}",
                expected="None, since x yields batches",
                received=f"a {type(value).__name__}",
                advice="yield (x, y) or (x, y, sample_weight), and pass validation_data",
            )
