"""The net and data of the tests of training."""

import sys
from types import ModuleType

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.optimizer import SGD
from singanet.training import Callback
from tests.training.callbacks.trackers import Mlflow, TrialPruned, Wandb


@pytest.fixture
def build():
    """Makes 5-8-3, compiled; equal seeds make equal nets."""

    def make(seed=0, optimizer=None):
        net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=seed)
        net.add(Dense("fc1", 8, input_sample_shape=(5,)))
        net.add(Activation("relu"))
        net.add(Dense("fc2", 3))
        net.compile(optimizer or SGD(lr=0.1))
        return net

    return make


@pytest.fixture
def data(rng):
    """40 samples of 5 numbers, and their classes."""
    x = rng.standard_normal((40, 5)).astype(np.float32)
    return x, rng.integers(0, 3, 40)


@pytest.fixture
def feign():
    """Makes a callback that puts given values into the logs, ahead of those that watch them."""

    class Feign(Callback):
        def __init__(self, **values):
            self.values = values

        def on_epoch_end(self, epoch, logs):
            logs.update({name: values[epoch] for name, values in self.values.items()})

    return Feign


@pytest.fixture
def wandb(monkeypatch):
    made = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", made)
    return made


@pytest.fixture
def mlflow(monkeypatch):
    made = Mlflow()
    monkeypatch.setitem(sys.modules, "mlflow", made)
    return made


@pytest.fixture
def optuna(monkeypatch):
    made = ModuleType("optuna")
    made.TrialPruned = TrialPruned
    monkeypatch.setitem(sys.modules, "optuna", made)
