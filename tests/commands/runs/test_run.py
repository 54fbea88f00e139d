"""A run from start to report, for a model of each kind."""

import math

import pytest

from singanet.commands.runs.run import run
from singanet.commands.runs.run_options import RunOptions
from singanet.data import tabular
from singanet.errors import ArgumentError
from singanet.models import build, entries


@pytest.fixture
def play(tmp_path):
    path = tmp_path / "play.txt"
    path.write_text("to be or not to be that is the question\n" * 60)
    return str(path)


@pytest.mark.few(3, full=0)
@pytest.mark.parametrize(("model", "said"), [
    ("resnet20", "test accuracy"), ("lstm", "test accuracy"),
    ("autoencoder", "test reconstruction error"), ("wide_deep", "test accuracy"),
    ("deepfm", "test accuracy"), ("dcn", "test accuracy"),
])  # fmt: skip
def test_each_kind_of_model_trains_on_what_comes_with_the_package(model, said, capsys):
    result = run(RunOptions(model, epochs=1, batch_size=512))
    assert result.report.startswith(said)
    figures = result.figures
    assert math.isfinite(figures["test_loss"])
    if "accuracy" in said:
        assert f"{figures['test_accuracy']:.4f}" in result.report
    else:
        assert figures["test_accuracy"] is None
    assert figures["parameter_bytes"] >= figures["peak_gradient_bytes"] > 0
    assert "epoch 1/1  loss" in capsys.readouterr().err


@pytest.mark.few(1, full=0)
@pytest.mark.parametrize("model", ["char_rnn", "transformer", "transformer_lm"])
def test_language_models_learn_a_text_of_the_users(model, play):
    result = run(RunOptions(model, play, epochs=3, batch_size=4))
    assert result.report.startswith("validation loss")
    # The plain frequencies of its 15 characters have an entropy of 2.4 nats.
    assert result.figures["test_loss"] < 2.3


def test_the_same_seed_gives_the_same_figures():
    def figures(seed):
        found = run(RunOptions("mlp", "digits", epochs=2, seed=seed)).figures
        return found["train_loss"], found["test_loss"]

    assert figures(1) == figures(1)
    assert figures(1) != figures(2)


def test_data_make_the_net():
    data = tabular()
    figures = run(RunOptions("deepfm", epochs=1, batch_size=4096)).figures
    shape = (len(data.cardinalities), len(data.numeric))
    net = build("deepfm", shape, 2, vocabulary_size=sum(data.cardinalities))
    assert figures["parameter_bytes"] == sum(v.nbytes for v in net.param_values())


def test_every_entry_has_a_recipe_that_can_be_run():
    for entry in entries():
        assert entry.recipe.epochs > 0
        assert entry.recipe.optimizer in ("sgd", "adam")
        assert 0 < entry.recipe.lr < 1


def test_a_bad_option_is_refused_before_the_data_are_read():
    with pytest.raises(ArgumentError, match="--epochs"):
        run(RunOptions("mlp", "no/such/file.npz", epochs=0))
