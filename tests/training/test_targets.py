"""What the defaults must reach on the data of the package; minutes long."""

import pytest

from singanet.commands.runs.run import run
from singanet.commands.runs.run_options import RunOptions

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(5))
def test_lenet_tells_the_digits_apart(seed):
    assert run(RunOptions("lenet", "digits", seed=seed)).figures["test_accuracy"] >= 0.985


def test_resnet20_tells_the_digits_apart():
    assert run(RunOptions("resnet20", "digits")).figures["test_accuracy"] >= 0.98


def test_char_rnn_foretells_the_plays():
    assert run(RunOptions("char_rnn", "plays")).figures["test_loss"] < 1.9


def test_transformer_foretells_the_plays():
    assert run(RunOptions("transformer", "plays")).figures["test_loss"] < 1.9


@pytest.mark.parametrize("model", ["wide_deep", "deepfm"])
def test_nets_for_tables_beat_the_more_frequent_class(model):
    # 76.1 % of the test rows earn less; published nets reach about 85 %.
    assert run(RunOptions(model, "census")).figures["test_accuracy"] >= 0.845


def test_reconstructions_beat_the_mean_image():
    # Half the variance of the pixels around the mean image is 0.037.
    assert run(RunOptions("autoencoder", "digits")).figures["test_loss"] < 0.01
