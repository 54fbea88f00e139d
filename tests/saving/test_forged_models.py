"""Forged model files: only the project's own errors, and no more time and memory than a bound."""

import contextlib
import copy
import inspect
import json
import time
import tracemalloc

import pytest

import singanet
from singanet import FeedForwardNet, layers, loss
from singanet.errors import ConfigError, SingaNetError
from singanet.optimizer import SGD, schedules
from singanet.saving import nets
from tests.kit.files import read_state, rewrite_text
from tests.layer_catalogue import CATALOGUE, net_of
from tests.mutation.mutations import places

MEMORY = 32 << 20


def test_a_deep_text_is_refused(tmp_path):
    net = net_of("Dense")
    net.save_model(tmp_path / "a.singanet")
    about = json.loads(bytes(read_state(tmp_path / "a.singanet")["model"]))
    deep = about["net"]
    for level in range(300):
        deep = {
            "format": "singanet net", "version": 1, "loss": None, "metric": None,
            "name": f"n{level}", "layers": [{"name": f"n{level}", "net": deep, "sources": []}],
        }  # fmt: skip
    for text in (json.dumps({**about, "net": deep}), "[" * 100_000, '{"a":' * 5000):
        net.save_model(tmp_path / "a.singanet")
        rewrite_text(tmp_path / "a.singanet", lambda about, state, text=text: text)
        with pytest.raises(SingaNetError) as caught:
            singanet.load_model(tmp_path / "a.singanet")
        assert len(str(caught.value)) < 1500


def whole_numbers(value):
    """Every ``(holder, key)`` inside ``value`` where a whole number stands."""
    return [(h, k) for h, k in places(value) if type(h[k]) is int]


@pytest.mark.few(24)
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


def nested(levels):
    """A description of few bytes whose second net is the first one again, level by level."""
    inner = net_of("Dense").to_config()
    for _ in range(levels):
        inner = {
            "format": "singanet net", "version": 1, "loss": None, "metric": None,
            "layers": [
                {"name": "a", "net": {**inner, "name": "a"}, "sources": []},
                {"name": "b", "shares": "a", "sources": []},
            ],
        }  # fmt: skip
    return inner


def chain(count):
    config = net_of("Dense").to_config()
    first = config["layers"][-1]
    for k in range(count):
        before = config["layers"][-1]["name"]
        arguments = {k: v for k, v in first["arguments"].items() if k != "input_sample_shape"}
        entry = {**first, "name": f"d{k}", "arguments": {**arguments, "name": f"d{k}"}}
        config["layers"].append({**entry, "sources": [[before, None]]})
    return config


@pytest.mark.parametrize(
    "config", [nested(22), nested(40), chain(20_000)], ids=["22", "40", "chain"]
)
def test_small_descriptions_of_large_nets(config):
    start = time.process_time()
    with pytest.raises(ConfigError, match="at most 10000 parts"):
        FeedForwardNet.from_config(config)
    assert time.process_time() - start < 2


@pytest.mark.parametrize("again", [0, 2])
def test_nets_of_as_many_parts_as_may_be_and_no_more(again, tmp_path, monkeypatch):
    """A net that is used again has all of its parts again; it is refused where it is saved."""
    inner = FeedForwardNet(name="inner")
    for k in range(3):
        inner.add(layers.Dense(f"d{k}", 4, input_sample_shape=(4,)))
    x = y = singanet.Input("x", (4,))
    for _ in range(1 + again):
        y = inner(y)
    net = FeedForwardNet(inputs=x, outputs=layers.Dense("last", 2)(y))
    config, path, parts = net.to_config(), tmp_path / "a.singanet", 1 + 3 * (1 + again) + 1
    monkeypatch.setattr(nets, "MOST_NODES", parts)
    assert FeedForwardNet.from_config(config).to_config() == config
    net.save_model(path)
    assert singanet.load_model(path).param_names() == net.param_names()
    monkeypatch.setattr(nets, "MOST_NODES", parts - 1)
    path.unlink()
    told, advice = f"at most {parts - 1} parts", ", the limit of readers.*net\\.save"
    for call, words in (
        (lambda: FeedForwardNet.from_config(config), told), (net.to_config, told),
        (lambda: net.save_model(path), told + advice),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            call()
    assert not path.exists()
    net.save(tmp_path / "a.npz")  # as the advice says
    assert net.load(tmp_path / "a.npz").complete


def test_what_is_too_deep_to_be_read_is_not_written(tmp_path):
    rate, path = 0.1, tmp_path / "a.singanet"
    for _ in range(70):
        rate = schedules.Chained([rate, 0.2], [3])
    net = net_of("Dense")
    net.compile(SGD(lr=rate), loss.SquaredError())
    with pytest.raises(ConfigError, match="at most 200 nested levels"):
        net.save_model(path)
    assert not path.exists()
    net.save_model(path, training=False)
    singanet.load_model(path)


def test_a_training_of_many_fits(tmp_path):
    net = net_of("Dense")
    net.compile(SGD(lr=0.1), loss.SquaredError())
    path = tmp_path / "a.singanet"
    net.save_model(path)
    fits = [[0.1 * k, "layer", 1] for k in range(20_000)]
    rewrite_text(path, lambda about, state: about["training"].update(fit=fits))
    start = time.process_time()
    with pytest.raises(ConfigError, match="at most 256"):
        singanet.load_model(path)
    assert time.process_time() - start < 2


@pytest.mark.parametrize("name", ["", "a\n", "/", "\ud800"])
def test_names_of_nested_nets(name):
    inner = {**net_of("Dense").to_config(), "name": "n"}
    with pytest.raises(ConfigError, match="names of 1 to 4096 bytes"):
        FeedForwardNet.from_config(
            {**inner, "layers": [{"name": name, "net": inner, "sources": []}]}
        )
