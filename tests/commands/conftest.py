import signal

import numpy as np
import pytest

from singanet.__main__ import main
from singanet.commands.runs.optimizers import RunFigures
from singanet.commands.runs.run import run
from singanet.commands.runs.run_options import RunOptions
from singanet.data import digits
from tests.commands.published import BERT, LLAMA, published
from tests.pretrained.test_loading import sentences


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """An .npz file of 40 digits to train on and 20 to test on."""
    data = digits()
    path = tmp_path_factory.mktemp("data") / "small.npz"
    np.savez(
        path, x_train=data.x_train[:40], y_train=data.y_train[:40], x_test=data.x_test[:20],
        y_test=data.y_test[:20],
    )  # fmt: skip
    return str(path)


@pytest.fixture(scope="session")
def run_dir(small, tmp_path_factory):
    """A run folder that nobody changes."""
    out = tmp_path_factory.mktemp("runs") / "run"
    run(RunOptions("mlp", small, epochs=3, out=out))
    return out


@pytest.fixture
def refused(capsys):
    """The one line on standard error of a command that exits with status 2."""

    def call(*argv):
        capsys.readouterr()  # of commands before
        try:
            status = main([str(part) for part in argv])
        except SystemExit as stop:
            status = stop.code
        out, err = capsys.readouterr()
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("singanet")
        return err

    return call


@pytest.fixture
def told(capsys):
    """What a command that ends well prints."""

    def call(*argv):
        capsys.readouterr()
        assert main([str(part) for part in argv]) == 0
        return capsys.readouterr().out

    return call


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """The folder of a small random language model, which nobody changes."""
    return published(LLAMA, tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def sentence_model(tmp_path_factory):
    return sentences(published(BERT, tmp_path_factory.mktemp("models") / "bert", None))


@pytest.fixture
def signals_at(monkeypatch):
    """Lets a signal come within a step of a run, once."""

    def at(step, number=signal.SIGINT):
        def on_batch_begin(self, batch):
            if self.session.step + 1 == step:
                monkeypatch.undo()
                signal.raise_signal(number)

        monkeypatch.setattr(RunFigures, "on_batch_begin", on_batch_begin, raising=False)

    return at
