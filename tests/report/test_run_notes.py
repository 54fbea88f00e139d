from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np

from singanet.report import RunNotes


def test_says_before_the_first_step_what_is_trained(fit, net, tmp_path):
    settings = {"data": "digits", "augment": True, "shape": (1, 8), "type": np.float16, "x": 1e999}
    fit([RunNotes(tmp_path / "run", settings)], epochs=2)
    config = json.loads((tmp_path / "run" / "config.json").read_text(), parse_constant=float)
    assert config["epochs"] == 2
    assert config["learning_rate"] == 0.1
    assert config["loss"] == {"class": "SoftmaxCrossEntropy"}
    assert config["optimizer"] == "SGD"
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


def test_schedules_are_named(fit, net, tmp_path):
    net.compiled.optimizer.lr = lambda step: 0.1
    fit([RunNotes(tmp_path)], epochs=1)
    assert json.loads((tmp_path / "config.json").read_text())["learning_rate"] == "function"
