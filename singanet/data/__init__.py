"""Data sets, and loaders that hand out their batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.columns import Columns
from singanet.base.elsewhere import names_of
from singanet.data import image_tool
from singanet.data.array_loader import ArrayLoader
from singanet.data.cifar import cifar10, cifar100
from singanet.data.clicks import CRITEO_FIELDS, clicks
from singanet.data.dataset import Dataset
from singanet.data.digits import digits
from singanet.data.folder_loader import FolderLoader
from singanet.data.generator_loader import GeneratorLoader
from singanet.data.idx import read_idx
from singanet.data.image_batch_iter import ImageBatchIter
from singanet.data.image_tool import ImageTool
from singanet.data.load import load, load_test
from singanet.data.loader import Batch, Loader
from singanet.data.mnist import mnist
from singanet.data.movielens import movielens
from singanet.data.npz import read_npz
from singanet.data.prefetch import Prefetch
from singanet.data.scenes import scenes
from singanet.data.table import Table
from singanet.data.tabular import TabularDataset, tabular
from singanet.data.text import TextDataset, plays
from singanet.data.text_loader import TextLoader
from singanet.data.tokens import Chat, TextFolder, TextStream, Tokenizer, TokenLoader

__all__ = [
    "CRITEO_FIELDS",
    "ArrayLoader",
    "Batch",
    "Chat",
    "Columns",
    "Dataset",
    "FolderLoader",
    "GeneratorLoader",
    "ImageBatchIter",
    "ImageTool",
    "Loader",
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
    "image_tool",
    "load",
    "load_test",
    "mnist",
    "movielens",
    "plays",
    "read_idx",
    "read_npz",
    "scenes",
    "tabular",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__ = names_of(__name__, __all__)
