"""A published model's folder in small: a vocabulary trained on the plays, and a template."""

import json

import pytest

from singanet.data import Tokenizer, plays

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|im_end|>"
    "{% endgeneration %}{% else %}{{ message['content'] }}<|im_end|>{% endif %}{{ '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""With what its answers are marked by; transformers needs that for its own mask."""
UNMARKED = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def trained(text, size=400, special=SPECIAL):
    tokenizers = pytest.importorskip("tokenizers")
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )  # fmt: skip
    backend.train_from_iterator(text.split("\n"), trainer)
    return backend


@pytest.fixture(scope="session")
def text():
    dataset = plays()
    return dataset.decode(dataset.validation)


@pytest.fixture(scope="session")
def folder(tmp_path_factory, text):
    made = tmp_path_factory.mktemp("model")
    trained(text).save(str(made / "tokenizer.json"))
    config = {
        "bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>", "lstrip": False},
        "pad_token": "<|endoftext|>", "chat_template": CHATML,
    }  # fmt: skip
    (made / "tokenizer_config.json").write_text(json.dumps(config))
    return made


@pytest.fixture(scope="session")
def tokenizer(folder):
    return Tokenizer.of(folder)


@pytest.fixture(scope="session")
def unmarked(folder):
    return Tokenizer(
        Tokenizer.of(folder).backend, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        chat_template=UNMARKED,
    )  # fmt: skip
