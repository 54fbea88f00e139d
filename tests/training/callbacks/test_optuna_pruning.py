import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from singanet.base.files import is_held
from singanet.errors import ArgumentError, BackendError, UnknownNameError
from singanet.report import recorders
from singanet.training.callbacks import Callback, EarlyStopping, OptunaPruning


class TrialPruned(Exception):  # noqa: N818 - as Optuna calls it
    pass


class Trial:
    """Prunes at the epoch ``at``."""

    def __init__(self, at=None, directions=("MINIMIZE",)):
        self.at, self.reports = at, []
        names = [SimpleNamespace(name=name) for name in directions]
        self.study = SimpleNamespace(directions=names)

    def report(self, value, step):
        self.reports.append((step, value))

    def should_prune(self):
        return self.reports[-1][0] == self.at


@pytest.fixture
def optuna(monkeypatch):
    made = ModuleType("optuna")
    made.TrialPruned = TrialPruned
    monkeypatch.setitem(sys.modules, "optuna", made)


@pytest.fixture
def fit(build, data):
    def run(*callbacks):
        net = build()
        return net, lambda: net.fit(
            *data, epochs=4, validation_split=0.2, callbacks=callbacks, verbose=False
        )

    return run


def test_a_trial_that_goes_on_hears_of_every_epoch(fit, optuna):
    trial = Trial()
    _, train = fit(OptunaPruning(trial))
    assert trial.reports == list(enumerate(train()["val_loss"]))


def test_a_pruned_one_leaves_all_in_order_first(fit, data, optuna, tmp_path):
    ended = []

    class Behind(Callback):
        def on_train_end(self):
            ended.append((self.session.error, self.session.stopped))

    stopping = EarlyStopping(patience=9)
    callbacks = [*recorders(tmp_path), stopping, OptunaPruning(Trial(at=1)), Behind()]
    net, train = fit(*callbacks)
    with pytest.raises(TrialPruned, match="pruned after epoch 2, at val_loss"):
        train()
    assert [error for error, _ in ended] == [None]
    assert "pruned after epoch 2" in ended[0][1]
    assert not is_held(tmp_path)
    outcome = json.loads((tmp_path / "outcome.json").read_text("utf-8"))
    assert outcome["epochs"] == 2
    assert outcome["error"] is None
    assert "pruned after epoch 2" in outcome["stopped"]
    assert net.compiled.epochs == 2
    net.fit(*data, verbose=False)  # it is usable


def test_an_error_is_not_hidden_by_the_pruning(fit, optuna):
    class Failing(Callback):
        def on_epoch_end(self, epoch, logs):
            raise ValueError("no more")

    _, train = fit(OptunaPruning(Trial(at=0)), Failing())
    with pytest.raises(ValueError, match="no more"):
        train()


def test_a_study_that_looks_for_the_opposite_is_refused(fit, optuna):
    _, train = fit(OptunaPruning(Trial(), "val_accuracy"))
    with pytest.raises(ArgumentError, match=r"more is better; pass direction='maximize'"):
        train()
    _, train = fit(OptunaPruning(Trial(directions=["MAXIMIZE"])))
    with pytest.raises(ArgumentError, match=r"'val_loss': less is better"):
        train()
    trial = Trial(directions=["MAXIMIZE"])
    _, train = fit(OptunaPruning(trial, "val_accuracy"))
    assert len(train().epochs) == len(trial.reports) == 4
    with pytest.raises(ArgumentError, match="one objective; received a study with 2"):
        OptunaPruning(Trial(directions=["MINIMIZE", "MAXIMIZE"]))


def test_what_is_not_measured_is_refused_before_the_first_step(fit, optuna):
    _, train = fit(OptunaPruning(Trial(), "val_f1"))
    with pytest.raises(UnknownNameError, match="val_f1"):
        train()


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(BackendError, match=r"OptunaPruning: .*run: pip install optuna"):
        OptunaPruning(Trial())


@pytest.mark.full
def test_optuna_itself_prunes(build, data):
    optuna = pytest.importorskip("optuna", exc_type=ImportError)
    from singanet.optimizer import SGD

    optuna.logging.disable_default_handler()
    rates = iter([0.1, 0.1, 0.0, 0.1])
    done = []

    def objective(trial):
        net = build(optimizer=SGD(lr=next(rates)))
        history = net.fit(
            *data, epochs=6, validation_split=0.2, callbacks=[OptunaPruning(trial)], verbose=False
        )
        done.append(trial.number)
        return history["val_loss"][-1]

    pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1)
    study = optuna.create_study(pruner=pruner)
    study.optimize(objective, n_trials=4)
    states = [trial.state.name for trial in study.trials]
    assert states[2] == "PRUNED"
    assert 2 not in done
    assert states.count("COMPLETE") >= 2
    assert 1 < len(study.trials[2].intermediate_values) < 6
    several = optuna.create_study(directions=["minimize", "minimize"]).ask()
    with pytest.raises(ArgumentError, match="received a study with 2"):
        OptunaPruning(several)
