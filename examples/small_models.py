"""Folders of small random models, in the place of published ones: for a look, and for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from singanet import pretrained
from singanet.data import Tokenizer

TEXT: dict[str, Any]
TEXT = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
TEXT |= {"num_attention_heads": 4, "max_position_embeddings": 256}
CHAT = TEXT | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
CHAT |= {"num_key_value_heads": 2, "tie_word_embeddings": True}
BERT = TEXT | {"model_type": "bert", "architectures": ["BertModel"], "type_vocab_size": 1}
IMAGE = {"model_type": "vit", "architectures": ["ViTModel"], "image_size": 16, "patch_size": 4}
IMAGE |= {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
IMAGE |= {"num_hidden_layers": 2}
TEMPLATE = """{% for message in messages %}<|begin|>{{ message.role }}
{{ message.content }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|begin|>assistant
{% endif %}"""


def chat_model(folder: Path, text: str) -> Path:
    """A Llama with a chat template, and a vocabulary of byte pairs of ``text``."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CHAT["vocab_size"],
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(text.split("\n"), trainer)
    tokenizer = Tokenizer(backend, eos_token="<|end|>", chat_template=TEMPLATE)
    return _saved(folder, CHAT, tokenizer)


def encoder(folder: Path, text: str, sentences: bool = False, masks: bool = False) -> Path:
    """A BERT with a vocabulary of ``text``; for ``sentences`` as sentence-transformers has it."""
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    signs = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + ["[MASK]"] * masks
    size = BERT["vocab_size"]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=signs, show_progress=False)
    backend.train_from_iterator(text.split("\n"), trainer)
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made = _saved(folder, BERT, Tokenizer(backend, pad_token="[PAD]"))
    if sentences:
        kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
        parts = [{"path": path, "type": f"sentence_transformers.models.{k}"} for path, k in kinds]
        (made / "modules.json").write_text(json.dumps(parts))
        (made / "1_Pooling").mkdir()
        pooling = {
            "word_embedding_dimension": BERT["hidden_size"],
            "pooling_mode_mean_tokens": True,
        }
        (made / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return made


def image_model(folder: Path) -> Path:
    """A vision transformer for images of 16 x 16."""
    return _saved(folder, IMAGE, None)


def _saved(folder: Path, config: dict[str, Any], tokenizer: Tokenizer | None) -> Path:
    pretrained.save(pretrained.build(config, seed=0), folder)
    if tokenizer is not None:
        tokenizer.save(folder)
    return folder
