"""Tokens a second of ``singanet serve`` for one client and for several together.

A model of 135 million parameters (or FOLDER) writes texts of 64 tokens. The clients of a round ask
at once; rounds of one client and of all take turns. Then the memory of the server before and
after many requests.

    python benchmarks/serve.py [FOLDER] [--clients 16] [--rounds 3] [--requests 2000]
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from singanet import pretrained

SIZES = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 49152,
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 2048,
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
LENGTH = 64


def drawn(folder: Path) -> Path:
    """A random model with a tokenizer of single bytes."""
    import tokenizers

    pretrained.save(pretrained.build(SIZES, seed=0), folder)
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: id for id, letter in enumerate(letters)}, [])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({}))
    return folder


def resident(pid: int) -> float:
    """The resident memory of a process in MB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


def main() -> None:
    """Serve, ask and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=2000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = asked.folder or drawn(Path(place))
        command = [sys.executable, "-m", "singanet", "serve", str(folder), "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        url = re.search(r"http://\S+", server.stdout.readline())[0]
        client = httpx.Client(base_url=url, timeout=600)

        def ask(k: int, length: int = LENGTH) -> int:
            body = {"prompt": f"Text {k}: it was", "max_tokens": length, "seed": k}
            found = client.post("/v1/completions", json=body)
            return found.json()["usage"]["completion_tokens"]

        ask(0)
        rates: dict[int, list[float]] = {1: [], asked.clients: []}
        with ThreadPoolExecutor(asked.clients) as pool:
            for _ in range(asked.rounds + 1):
                for count in rates:
                    begin = time.perf_counter()
                    tokens = sum(pool.map(ask, range(count)))
                    rates[count].append(tokens / (time.perf_counter() - begin))
            for count, found in rates.items():
                # The first round records programs.
                middle, least, most = statistics.median(found[1:]), min(found[1:]), max(found[1:])
                print(f"{count:3} clients: {middle:7.1f} tokens/s ({least:.1f} to {most:.1f})")
            one, several = (statistics.median(found[1:]) for found in rates.values())
            print(f"together: {several / one:.2f} times one client's")
            before = resident(server.pid)
            list(pool.map(lambda k: ask(k % 50, 2), range(asked.requests)))
            after = resident(server.pid)
            print(f"memory: {before:.0f} MB, after {asked.requests} requests {after:.0f}")
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
