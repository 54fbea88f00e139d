"""Folders of published models in small: random nets, with a vocabulary trained on a text."""

import json

import pytest

from singanet import pretrained
from singanet.data import plays
from tests.data.tokens.conftest import UNMARKED, trained
from tests.pretrained.configs import CONFIGS

SIZES = {"hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 64}
LLAMA = CONFIGS["llama"] | SIZES | {"vocab_size": 400, "initializer_range": 0.1}
BERT = CONFIGS["bert"] | {"vocab_size": 400}


def spoken():
    """Some lines of the plays."""
    dataset = plays()
    return dataset.decode(dataset.validation)


def published(config, path, template=UNMARKED):
    """The folder of a random net of ``config`` and a tokenizer."""
    pytest.importorskip("tokenizers")
    pretrained.save(pretrained.build(config, seed=0), path)
    trained(spoken()).save(str(path / "tokenizer.json"))
    told = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": template}
    told = {name: value for name, value in told.items() if value is not None}
    (path / "tokenizer_config.json").write_text(json.dumps(told))
    return path
