"""From a file of conversations to a model that answers in the manner it was taught."""

import json

import numpy as np
import pytest

from singanet import pretrained
from singanet.data import Chat, plays
from singanet.optimizer import AdamW
from tests.data.tokens.conftest import CHATML, trained
from tests.pretrained.test_loading import LLAMA

tokenizers = pytest.importorskip("tokenizers")

WORDS = ("king", "queen", "ghost", "night", "sword", "crown")


def asked(rng):
    """A task with one right answer, and that."""
    first, second = rng.choice(WORDS, 2)
    return f"Say {first} then {second}", f"{second} {first}"


@pytest.mark.full
def test_a_task_with_one_right_answer(tmp_path):
    dataset = plays()
    backend = trained(dataset.decode(dataset.validation))
    tokenizer = pretrained_tokenizer(backend, tmp_path)
    rng = np.random.default_rng(0)
    entries = [dict(zip(("prompt", "answer"), asked(rng), strict=True)) for _ in range(400)]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, entries)))
    sizes = {"hidden_size": 64, "intermediate_size": 128, "initializer_range": 0.1}
    config = LLAMA | sizes | {"vocab_size": 400, "max_position_embeddings": 128}
    # Taught by rows of several conversations, each of which sees itself alone.
    net = pretrained.build(config, inputs=["input_ids", "segments"], seed=0)
    net.compile(AdamW(lr=4e-3))
    loader = Chat(tmp_path / "chats.jsonl", tokenizer, 8, 128)
    losses = net.fit(loader, epochs=5, verbose=False)["loss"]
    assert losses[-1] < 0.1
    pretrained.save(net, tmp_path / "tuned")
    tuned = pretrained.load(tmp_path / "tuned")
    right = 0
    for _ in range(20):
        question, answer = asked(rng)
        prompt = tokenizer.prompt([{"role": "user", "content": question}])
        found = tuned.generate([prompt.tolist()], 12, temperature=0, stop=tokenizer.eos_id)[0]
        right += tokenizer.decode(found) == answer
    assert right >= 19


def pretrained_tokenizer(backend, folder):
    """As it comes from a model's folder."""
    backend.save(str(folder / "tokenizer.json"))
    told = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return pretrained.tokenizer(folder)
