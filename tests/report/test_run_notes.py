from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from singanet.optimizer import SGD, Accumulator, ClipByLayerNorm, Wrapper
from singanet.optimizer.schedules import Step
from singanet.report import RunNotes


def test_says_before_the_first_step_what_is_trained(fit, net, tmp_path):
    settings = {"data": "digits", "augment": True, "shape": (1, 8), "type": np.float16, "x": 1e999}
    fit([RunNotes(tmp_path / "run", settings)], epochs=2)
    config = json.loads((tmp_path / "run" / "config.json").read_text(), parse_constant=float)
    assert config["epochs"] == 2
    assert config["learning_rate"] == 0.1
    assert config["loss"] == {"class": "SoftmaxCrossEntropy", "arguments": {}}
    assert config["optimizer"] == {"class": "SGD", "arguments": {"lr": 0.1}}
    assert config["seed"] == 0
    assert config["device"] == "cpu"
    # The settings given stand over what is known.
    assert config["type"] == "<class 'numpy.float16'>"
    assert config["shape"] == [1, 8]
    assert config["augment"] is True
    assert config["x"] == "inf"
    assert (tmp_path / "run" / "summary.txt").read_text() == net.summary() + "\n"
    root = ElementTree.parse(tmp_path / "run" / "net.svg").getroot()
    assert root.tag.endswith("svg")


def test_the_optimizer_can_be_built_again_with_what_fit_put_around_it(fit, net, tmp_path):
    net.compile(SGD(lr=Step(0.1, 5), momentum=0.9))
    fit([RunNotes(tmp_path)], epochs=1, clip=2.0, accumulate=2)
    config = json.loads((tmp_path / "config.json").read_text())
    made = Wrapper.from_config(config["optimizer"])
    assert isinstance(made, Accumulator)
    assert made.every == 2
    assert isinstance(made.optimizer, ClipByLayerNorm)
    assert made.optimizer.max_norm == 2.0
    assert made.optimizer.optimizer.momentum == 0.9
    assert [made.optimizer.optimizer.lr(k) for k in (4, 5)] == [0.1, pytest.approx(0.01)]
    assert (
        config["learning_rate"]
        == config["optimizer"]["arguments"]["optimizer"]["object"]["arguments"]["optimizer"][
            "object"
        ]["arguments"]["lr"]["object"]
    )


def test_what_is_no_data_is_shown_as_python_does(fit, net, tmp_path):
    net.compile(SGD(lr=abs, momentum=0.5))
    fit([RunNotes(tmp_path)], epochs=1)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["optimizer"] == {
        "class": "SGD",
        "arguments": {"lr": "<built-in function abs>", "momentum": 0.5},
    }


def test_schedules_are_named(fit, net, tmp_path):
    net.compiled.optimizer.lr = lambda step: 0.1
    fit([RunNotes(tmp_path)], epochs=1)
    assert json.loads((tmp_path / "config.json").read_text())["learning_rate"] == "function"
