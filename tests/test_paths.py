"""Every public call that takes the path of a file or folder is given values that are no path."""

import inspect
import re
from contextlib import suppress
from unittest.mock import create_autospec

import numpy as np
import pytest

import singanet
from singanet.data import Tokenizer
from singanet.errors import SingaNetError
from singanet.layers import Dense, Input
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD
from singanet.training import RateRange
from tests.public_api import public_names

NAMES = {
    "f", "path", "paths", "folder", "name_or_path", "run_folder", "run_folders", "img_list_file",
    "image_folder", "snapshots", "like", "offload_folder", "a", "b", "source", "target", "resume",
}  # fmt: skip
"""Arguments that are paths."""
APART = {
    "singanet.data.Tokenizer.save": "its object needs a package",
    "singanet.FeedForwardNet.offload-resume": "it is a flag",
    "singanet.FeedForwardNet.fit-offload_folder": "without a budget nothing goes there",
    "singanet.program.ProgramReport": "net.report makes it",
    "singanet.checkpoint.Packed": "its target is an array's",
    "singanet.checkpoint.Reader": "formats make it",
    "singanet.data.GeneratorLoader": "its source makes batches",
    "singanet.data.TokenLoader": "its subclasses are called",
    "singanet.layers.Where": "its a and b are layers",
    **{
        f"singanet.functional.{name}": "its a and b are arrays"
        for name in ("equal", "matmul", "maximum", "minimum", "where")
    },
    "singanet.report.Run": "read_run fills it",
    "singanet.training.Session": "fit makes it",
    "singanet.program.tuning.TuningReport": "tuning makes it",
    "singanet.parallel.Communicator": "its source is a rank",
    "singanet.parallel.SingleProcess": "its source is a rank",
    "singanet.testing.FakeCommunicator": "its source is a rank",
    "singanet.parallel.ThreadCommunicator": "its source is a rank",
}
"""Calls that take no path of a user's, and why."""


def net():
    layer = Dense("a", 2, input_sample_shape=(3,))
    return singanet.FeedForwardNet([layer], loss=SoftmaxCrossEntropy())


def owners():
    """An object of each class that has methods with paths."""
    fitted = net()
    x, y = np.zeros((4, 3), np.float32), np.zeros(4, np.int64)
    fitted.compile(SGD(lr=0.1))
    history = fitted.fit(x, y, verbose=False)
    executor = singanet.Executor({"e": [Dense("a", 4)(Input("x", (3,)))]})
    made = [fitted, fitted.predictor(), history, executor]
    made.append(RateRange([0.1], [1.0]))
    return {type(each).__name__: each for each in made}


def others(folder):
    """What is given to the other parameters, by their names."""
    return {
        "net": net(), "state": {"a": np.zeros(3)}, "x": np.zeros((4, 3), np.float32),
        "y": np.zeros(4, np.int64), "batch_size": 2,
        "names": ["a"], "tokenizer": create_autospec(Tokenizer, instance=True), "length": 4,
        "name": "e", "counts": np.eye(2, dtype=int), "optimizer": SGD(lr=0.1), "verbose": False,
    } | dict.fromkeys(NAMES, folder / "none")  # fmt: skip


def calls():
    """The name of each public call that takes a path, with the arguments that are one."""
    seen = set()
    for name, thing in public_names().items():
        if not callable(thing) or id(thing) in seen:
            continue
        seen.add(id(thing))
        members = dir(thing) if inspect.isclass(thing) and "Pretrained" not in name else ()
        for member in ["", *(each for each in members if not each.startswith("_"))]:
            call = getattr(thing, member) if member else thing
            try:
                taken = inspect.signature(call).parameters
            except (TypeError, ValueError):
                continue
            called = f"{name}.{member}" if member else name
            for argument in NAMES & {*taken}:
                if not APART.keys() & {name, called, f"{called}-{argument}"}:
                    yield pytest.param(thing, member, argument, id=f"{called}-{argument}")


@pytest.mark.parametrize(("thing", "member", "argument"), sorted(calls(), key=lambda each: each.id))
def test_what_is_no_path_is_told_so(thing, member, argument, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = getattr(owners().get(thing.__name__, thing), member) if member else thing
    taken = inspect.signature(call).parameters
    given = others(tmp_path)
    needed = {
        key: given[key]
        for key, each in taken.items()
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        and (each.default is each.empty or key in ("y", "verbose"))
    }
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    default = taken[argument].default
    for wrong in (None, 3, b"x", "a\0b"):
        if wrong is None and default is None:
            continue
        with pytest.raises(SingaNetError) as caught:
            call(**needed | {argument: wrong})
        assert re.fullmatch(r"(?s).+: expected .+; received .+; .+", str(caught.value))
        first = argument == next(key for key in taken if key in NAMES)
        assert not first or repr(wrong) in str(caught.value)
    for place in (tmp_path / "folder", tmp_path / "empty"):
        with suppress(SingaNetError):
            call(**needed | {argument: place})
