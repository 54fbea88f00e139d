"""The scheduler of ``singanet serve``: its texts beside `FeedForwardNet.generate`."""

from queue import Queue
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet import pretrained
from singanet.commands.serving.scheduler import Scheduler, TextRequest
from singanet.decoding import Sampling


@pytest.fixture(scope="module")
def model(llama):
    return pretrained.load(llama), pretrained.tokenizer(llama)


class Begun:
    """A scheduler whose texts are read once all have been submitted."""

    def __init__(self, net, tokenizer, **limits):
        self.scheduler = Scheduler(net, tokenizer, **limits)
        self.ended = Queue()

    def ask(self, name, prompt, length, seed=0):
        """Write a text, whose name is put in the queue ``ended`` at its end."""
        parts = []

        def send(piece):
            parts.append(piece.text)
            if piece.ended:
                assert piece.error is None
                self.ended.put((name, "".join(parts)))

        request = TextRequest(prompt, length, Sampling(), send, seed=seed)
        self.scheduler.submit(request)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.scheduler.close()


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=24),
    written=st.integers(1, 6),
    together=st.sampled_from([1, 3, 16]),
    seed=st.integers(0, 99),
)
def test_prompts_read_together_give_the_texts_of_generate(model, lengths, written, together, seed):
    net, tokenizer = model
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(3, 300, length).tolist() for length in lengths]
    with Begun(net, tokenizer, most_active=together) as begun:
        with begun.scheduler._queue.changed:
            # All wait, so that prompts are read together.
            for k, prompt in enumerate(prompts):
                begun.ask(k, prompt, written, seed=k)
        found = dict(begun.ended.get(timeout=60) for _ in prompts)
    for k, prompt in enumerate(prompts):
        (ids,) = net.generate([prompt], written, seed=k)
        assert found[k] == tokenizer.decode(ids)


def test_a_long_prompt_is_read_although_short_ones_keep_coming(model, monkeypatch):
    net, tokenizer = model
    monkeypatch.setattr("singanet.commands.serving.scheduler._CHUNK", 4)
    scheduler, found, ended = Scheduler(net, tokenizer, most_active=4), [], Event()

    def ask(name, prompt):
        def send(piece):
            found.append(name)
            if name == "long" or len(found) == 200:
                ended.set()
            elif not ended.is_set():
                # In the scheduler's thread: a short prompt always waits.
                ask(name, prompt)

        scheduler.submit(TextRequest(prompt, 1, Sampling(), send))

    with scheduler._queue.changed:
        for k in range(3):
            ask(f"short {k}", [5, 6])
        ask("long", [*range(5, 45)])
    assert ended.wait(60)
    scheduler.close()
    assert "long" in found[:200]
