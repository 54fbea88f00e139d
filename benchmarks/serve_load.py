"""The memory of ``singanet serve`` over many mixed requests, and whether each is answered rightly.

Three servers of small random models (a language model, sentences, LeNet) get requests of all kinds:
texts and chats, whole, streamed and left early; embeddings; predictions as JSON and .npy; refused
ones. Memory is shown after each tenth.

    python benchmarks/serve_load.py [--requests 10000] [--clients 8]
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
from serve import resident

from singanet import models
from singanet.saving.whole_model import save_model
from tests.commands.published import BERT, LLAMA, published
from tests.pretrained.test_loading import sentences

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
NPY = {"content-type": "application/octet-stream"}
REFUSED = [
    b"", b"{", b"[" * 9000, b'{"prompt": "\xff"}', b'{"prompt": NaN}', b'{"prompt": 5}',
    b'{"prompt": "a", "max_tokens": 1e999}', b'{"prompt": "' + b"a" * 99_999 + b'"}',
]  # fmt: skip


class Served:
    """A process of ``singanet serve`` and its client."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "singanet", "serve", str(path), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        url = re.search(r"http://\S+", self.process.stdout.readline())[0]
        self.client = httpx.Client(base_url=url, timeout=120)

    def ask(self, route: str, **body: object) -> httpx.Response:
        """Return the response, which may have waited for its turn."""
        while (found := self.client.post(route, **body)).status_code == 429:
            time.sleep(0.05)
        return found


def main() -> None:
    """Serve, ask, check and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=8)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        net, path = models.build("lenet", seed=0), Path(place)
        save_model(net, path / "lenet.singanet")
        written = Served(published(LLAMA, path / "llama"))
        embedded = Served(sentences(published(BERT, path / "bert", None)))
        predicted = Served(path / "lenet.singanet")
        servers = written, embedded, predicted
        x = np.random.default_rng(0).normal(size=(64, 1, 28, 28)).astype(np.float32)
        wanted = net.predict(x)
        known: dict[int, str] = {}

        def one(k: int) -> None:
            kind, seed = k % 8, k // 8 % 40
            body = {"prompt": "Speak " * (1 + seed % 5), "max_tokens": 1 + seed % 8, "seed": seed}
            rows = slice(seed, seed + 1 + seed % 3)
            if kind == 0:
                text = written.ask(TEXT, json=body).json()["choices"][0]["text"]
                assert known.setdefault(seed, text) == text
            elif kind == 1:
                said = [{"role": "user", "content": body.pop("prompt")}]
                assert written.ask(CHAT, json=body | {"messages": said}).status_code == 200
            elif kind in (2, 3):
                body |= {"stream": True}
                with written.client.stream("POST", TEXT, json=body) as response:
                    lines = response.iter_lines()
                    if kind == 2 and response.status_code == 200:
                        assert [line for line in lines if line][-1] == "data: [DONE]"
            elif kind == 4:
                response = embedded.ask("/v1/embeddings", json={"input": ["Ay"] * (1 + seed % 4)})
                assert len(response.json()["data"]) == 1 + seed % 4
            elif kind == 5:
                found = predicted.ask("/predict", json=x[rows].tolist()).json()["predictions"]
                np.testing.assert_allclose(found, wanted[rows], atol=1e-5)
            elif kind == 6:
                buffer = io.BytesIO()
                np.save(buffer, x[rows])
                response = predicted.ask("/predict", content=buffer.getvalue(), headers=NPY)
                found = np.load(io.BytesIO(response.content))
                np.testing.assert_allclose(found, wanted[rows], atol=1e-5)
            else:
                server = servers[k // 8 % 3]
                route = (TEXT, "/v1/embeddings", "/predict")[k // 8 % 3]
                begin = time.perf_counter()
                response = server.client.post(route, content=REFUSED[seed % len(REFUSED)])
                assert 400 <= response.status_code < 500
                slowest[0] = max(slowest[0], time.perf_counter() - begin)

        slowest = [0.0]
        print("requests, MB: language model, sentences, LeNet; the slowest refusal in seconds")
        with ThreadPoolExecutor(asked.clients) as pool:
            for part in range(10):
                count = asked.requests // 10
                list(pool.map(one, range(part * count, (part + 1) * count)))
                sizes = [f"{resident(each.process.pid):7.1f}" for each in servers]
                print(f"{(part + 1) * count:7}", *sizes, f"{slowest[0]:.2f}", flush=True)
        for each in servers:
            each.process.terminate()
            assert each.process.wait(60) == 0


if __name__ == "__main__":
    main()
