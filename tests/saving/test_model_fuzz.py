"""Mutated model files: only the project's own errors, and no more memory than a bound."""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import random
import tracemalloc

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, Input, layers, loss, metric, models
from singanet.checkpoint import open_state, write_state
from singanet.errors import SingaNetError
from singanet.optimizer import SGD, ClipByLayerNorm
from singanet.optimizer.schedules import Step
from tests.layer_catalogue import CATALOGUE, net_of

MEMORY = 32 << 20
VALUES = [
    None, True, False, 0, 1, -1, 2, 7, 2**16, 2**31, 2**63, 10**12, 10**30, 0.5, -0.0, 1e308,
    float("nan"), float("inf"), "", "x", "fc", "Dense", "LSTM", "MultiLoss", "\ud800", "a/b", "..",
    [], [1], [[2], [2]], [2**31, 2**31], [0], {}, {"dict": {}}, {"parameter": "fc/weight"},
    {"initializer": "Uniform", "low": 0}, {"object": {"class": "Dense", "arguments": {}}},
    {"class": "SGD", "arguments": {}}, {"dict": {"init": "constant", "value": 1e30}},
]  # fmt: skip


def twins():
    """A net with nesting, a shared net, a tied weight, and what compile leaves."""
    tower = FeedForwardNet([layers.Dense("fc", 4, input_sample_shape=(3,))], name="tower")
    a, b = Input("a", (3,)), Input("b", (3,))
    both = layers.Concat("c", 1)(tower(a), tower(b))
    tied = layers.Dense("tied", 3, W_specs=tower["fc"].params["weight"], W_transpose=True)
    outputs = [layers.Dense("top", 2)(both), tied(tower(a))]
    net = FeedForwardNet(inputs=[b, a], outputs=outputs, seed=0)
    both_losses = loss.MultiLoss({"top": loss.SquaredError(), "tied": loss.Huber()})
    net.compile(
        ClipByLayerNorm(SGD(lr=Step(0.1, 3), momentum=0.9), 1.0),
        both_losses,
        {"top": metric.RootMeanSquaredError()},
    )
    x = {"a": np.ones((2, 3), np.float32), "b": np.ones((2, 3), np.float32)}
    y = {"top": np.ones((2, 2), np.float32), "tied": np.ones((2, 3), np.float32)}
    net.train_on_batch(x, y)
    return net


def seeds(folder):
    """The state of a few model files that between them hold every layer."""
    nets = [twins(), models.build("lenet", (1, 8, 8), 3, seed=0)]
    nets += [net_of(name) for name in CATALOGUE]
    for net in nets:
        net.save_model(folder / "seed.singanet")
        with open_state(folder / "seed.singanet") as reader:
            yield dict(reader)


def places(value):
    """Every ``(holder, key)`` inside ``value``."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


def mutated(about, rng):
    """``about`` with one to three values replaced, removed, doubled or moved."""
    about = copy.deepcopy(about)
    for _ in range(rng.choice([1, 1, 2, 3])):
        found = list(places(about))
        holder, key = rng.choice(found)
        other_holder, other_key = rng.choice(found)
        kind = rng.randrange(5)
        if kind < 2:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
        elif kind == 2:
            del holder[key]
        elif kind == 3:
            holder[key] = copy.deepcopy(other_holder[other_key])
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            holder[str(rng.choice(VALUES))] = holder[key]
    return about


def changed(raw, rng):
    """``raw`` with one to four bytes or runs of them changed, removed, doubled or cut off."""
    data = bytearray(raw)
    for _ in range(rng.choice([1, 1, 2, 4])):
        if not data:
            break
        at, size = rng.randrange(len(data)), rng.choice([1, 4, 64])
        kind = rng.randrange(5)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + size] = rng.randbytes(size)
        elif kind == 2:
            del data[at : at + size]
        elif kind == 3:
            data[at:at] = data[at : at + size]
        else:
            data = data[: max(at, 1)]
    return bytes(data)


def outcome(path, size):
    """What loading raises, or "loaded"; any error but ours, or too much memory, is raised."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    found, text = "loaded", ""
    try:
        singanet.load_model(path)
    except SingaNetError as error:
        found, text = type(error).__name__, str(error)
    _, peak = tracemalloc.get_traced_memory()
    assert len(text) < 1500
    assert peak - before < 10 * size + MEMORY
    return found


def of_texts(folder, count, seed):
    """How many of ``count`` files with mutated texts, whole otherwise, came to which end."""
    rng = random.Random(seed)
    whole = list(seeds(folder))
    found = {}
    path = folder / "mutated.singanet"
    tracemalloc.start()
    try:
        for _ in range(count):
            state = rng.choice(whole)
            about = mutated(json.loads(bytes(state["model"])), rng)
            text = np.frombuffer(json.dumps(about).encode(), np.uint8)
            write_state(path, {**state, "model": text}, "safetensors")
            end = outcome(path, path.stat().st_size)
            found[end] = found.get(end, 0) + 1
    finally:
        tracemalloc.stop()
    return found


def of_bytes(folder, count, seed):
    """The same for files whose bytes are mutated."""
    rng = random.Random(seed)
    path = folder / "seed.singanet"
    twins().save_model(path)
    raw, found = path.read_bytes(), {}
    tracemalloc.start()
    try:
        for _ in range(count):
            path.write_bytes(changed(raw, rng))
            end = outcome(path, path.stat().st_size)
            found[end] = found.get(end, 0) + 1
    finally:
        tracemalloc.stop()
    return found


@pytest.mark.parametrize("seed", range(2))
def test_mutated_texts_raise_only_our_errors(tmp_path, seed):
    found = of_texts(tmp_path, 150, seed)
    assert found["loaded"] > 5
    assert len(found) > 4


def test_mutated_bytes_raise_only_our_errors(tmp_path):
    found = of_bytes(tmp_path, 200, 3)
    assert found["ChecksumError"] > 20
    assert len(found) > 2


@pytest.mark.slow
def test_mutated_files_raise_only_our_errors_by_the_thousand(tmp_path):
    of_texts(tmp_path, 8000, 11)
    of_bytes(tmp_path, 8000, 12)


def test_a_deep_text_is_refused(tmp_path):
    net = net_of("Dense")
    net.save_model(tmp_path / "a.singanet")
    with open_state(tmp_path / "a.singanet") as reader:
        state = dict(reader)
    about = json.loads(bytes(state["model"]))
    deep = about["net"]
    for level in range(300):
        deep = {
            "format": "singanet net", "version": 1, "loss": None, "metric": None,
            "name": f"n{level}", "layers": [{"name": f"n{level}", "net": deep, "sources": []}],
        }  # fmt: skip
    for text in (json.dumps({**about, "net": deep}), "[" * 100_000, '{"a":' * 5000):
        state["model"] = np.frombuffer(text.encode(), np.uint8)
        write_state(tmp_path / "a.singanet", state, "safetensors")
        with pytest.raises(SingaNetError) as caught:
            singanet.load_model(tmp_path / "a.singanet")
        assert len(str(caught.value)) < 1500


def whole_numbers(value):
    """Every ``(holder, key)`` inside ``value`` where a whole number stands."""
    return [(h, k) for h, k in places(value) if type(h[k]) is int]


@pytest.mark.parametrize("name", CATALOGUE)
def test_no_number_in_a_description_costs_memory(name):
    config = net_of(name).to_config()
    entry = next(e for e in reversed(config["layers"]) if e.get("class") == name)
    for parameter in inspect.signature(getattr(layers, name)).parameters.values():
        if type(parameter.default) is int:
            entry["arguments"].setdefault(parameter.name, parameter.default)
    tracemalloc.start()
    try:
        for index in range(len(whole_numbers(config["layers"]))):
            for claim in (10**6, 2**31, 2**62):
                forged = copy.deepcopy(config)
                holder, key = whole_numbers(forged["layers"])[index]
                holder[key] = claim
                with contextlib.suppress(SingaNetError):
                    FeedForwardNet.from_config(forged)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
