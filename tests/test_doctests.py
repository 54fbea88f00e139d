"""The examples of docstrings print what they say."""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import singanet
from singanet import data, initializer, layers, loss, metric, optimizer
from singanet.base.described import Described
from singanet.optimizer import schedules
from singanet.training import callbacks

ROOT = Path(singanet.__file__).parent
MODULES = [
    ".".join(("singanet", *path.relative_to(ROOT).with_suffix("").parts))
    for path in sorted(ROOT.rglob("*.py"))
    if ">>> " in path.read_text("utf-8")
]
EXTRAS = {
    "singanet.data.folder_loader": "PIL.Image", "singanet.data.tokens.chat": "tokenizers",
    "singanet.data.tokens.tokenizer": "tokenizers", "singanet.sklearn": "sklearn"
}  # fmt: skip
"""The packages that the examples of a module need."""
FAMILIES = {
    layers: layers.Layer, loss: loss.Loss, metric: metric.Metric,
    optimizer: (
        optimizer.Optimizer, optimizer.Wrapper, optimizer.Regularizer, optimizer.Constraint
    ),
    schedules: schedules.Schedule, initializer: initializer.Initializer, data: Described,
    callbacks: callbacks.Callback
}  # fmt: skip

ONLY_BASES = {"Constraint", "ElementWise", "Layer", "Schedule", "Wrapper"}


@pytest.mark.parametrize("module", MODULES)
def test_examples_print_what_they_say(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if module in EXTRAS:
        pytest.importorskip(EXTRAS[module])
    names = {"np": np, "singanet": singanet}
    tests = doctest.DocTestFinder(exclude_empty=True).find(
        importlib.import_module(module), globs=names
    )
    runner, told = doctest.DocTestRunner(), []
    for each in tests:
        singanet.set_seed(0)
        runner.run(each, out=told.append)
    assert runner.tries > 0
    assert not runner.failures, "".join(told)


def test_sections_of_examples_have_their_title():
    texts = {path: path.read_text("utf-8") for path in ROOT.rglob("*.py")}
    assert [path for path, text in texts.items() if re.search("^ +Example:$", text, re.M)] == []


@pytest.mark.parametrize("room", FAMILIES, ids=lambda room: room.__name__)
def test_each_class_has_an_example(room):
    classes = [kind for kind in vars(room).values() if inspect.isclass(kind)]
    without = {
        kind.__name__
        for kind in classes
        if issubclass(kind, FAMILIES[room])
        and not inspect.isabstract(kind)
        and ">>> " not in kind.__doc__
    }
    assert without <= ONLY_BASES
