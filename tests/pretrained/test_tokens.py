"""Tokenizers from where nets are loaded."""

import numpy as np
import pytest

from singanet import pretrained
from singanet.checkpoint.entry import sources_of
from singanet.checkpoint.gguf import write_gguf
from singanet.data import Tokenizer
from singanet.errors import DataError, FileAccessError
from tests.pretrained.test_loading import LLAMA, folder_of

tokenizers = pytest.importorskip("tokenizers")
VALUES = {
    "general.architecture": "llama",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "</s>"],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.token_type": np.array([1, 1, 1, 3], np.int32),
    "tokenizer.ggml.eos_token_id": np.uint32(3),
}


@pytest.fixture
def gguf(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, sources_of({"w": np.zeros(3, np.float32)}, "w"), values=VALUES)
    return path


def test_of_a_gguf_file_and_of_a_folder_with_one(gguf):
    for source in (gguf, gguf.parent):
        found = pretrained.tokenizer(source)
        assert found.encode("abba").tolist() == [2, 1, 0]
        assert found.eos_id == 3


def test_of_a_folder_and_of_a_file_in_it(gguf, tmp_path):
    folder = folder_of(LLAMA, tmp_path / "model")
    pretrained.tokenizer(gguf).save(folder)
    for source in (folder, folder / "model.safetensors", str(folder)):
        found = pretrained.tokenizer(source)
        assert isinstance(found, Tokenizer)
        assert found.encode("abba</s>").tolist() == [2, 1, 0, 3]


def test_where_there_is_none(tmp_path):
    folder = folder_of(LLAMA, tmp_path / "model")
    with pytest.raises(DataError, match=r"expected tokenizer\.json"):
        pretrained.tokenizer(folder)
    with pytest.raises(FileAccessError):
        pretrained.tokenizer(tmp_path / "nothing")
