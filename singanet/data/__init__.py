"""Data sets, and loaders that yield their batches.

`dataset` and `table` define data sets; `loaders`, `folder_loader`, `prefetch`, `text` and `tokens`
yield batches, after `transforms` of images. `sets`, `image_sets` and `named_sets` are data sets;
`npz_files`, `row_files`, `table_files` and `pickles` read files; `files` contains the packaged
ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.columns import Columns
from singanet.base.elsewhere import names_when_asked

if TYPE_CHECKING:  # else when they are asked for
    from singanet.data import transforms
    from singanet.data.dataset import Dataset
    from singanet.data.folder_loader import FolderLoader, read_image
    from singanet.data.image_sets import cifar10, cifar100, mnist, read_idx
    from singanet.data.loaders import ArrayLoader, Batch, GeneratorLoader, Loader
    from singanet.data.named_sets import load, load_test
    from singanet.data.npz_files import read_npz
    from singanet.data.prefetch import Prefetch
    from singanet.data.sets import (
        TabularDataset,
        clicks,
        digits,
        movielens,
        scenes,
        tabular,
    )
    from singanet.data.table import Table
    from singanet.data.text import TextDataset, TextLoader, plays
    from singanet.data.tokens import (
        Chat,
        MaskingLoader,
        Pairs,
        TextFolder,
        TextStream,
        Tokenizer,
        TokenLoader,
    )

__all__ = [
    "ArrayLoader",
    "Batch",
    "Chat",
    "Columns",
    "Dataset",
    "FolderLoader",
    "GeneratorLoader",
    "Loader",
    "MaskingLoader",
    "Pairs",
    "Prefetch",
    "Table",
    "TabularDataset",
    "TextDataset",
    "TextFolder",
    "TextLoader",
    "TextStream",
    "TokenLoader",
    "Tokenizer",
    "cifar10",
    "cifar100",
    "clicks",
    "digits",
    "load",
    "load_test",
    "mnist",
    "movielens",
    "plays",
    "read_idx",
    "read_image",
    "read_npz",
    "scenes",
    "tabular",
    "transforms",
]

if not TYPE_CHECKING:  # a `__getattr__` would let type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
