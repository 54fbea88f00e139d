import numpy as np
import pytest

from singanet.errors import ArgumentError, UnknownNameError
from singanet.training import Callback
from singanet.training.callbacks import EarlyStopping

LOSSES = [5.0, 3.0, 4.0, 3.5, 3.2, 1.0]


class Copies(Callback):
    """The parameters after every epoch."""

    def __init__(self):
        self.kept = []

    def on_epoch_end(self, epoch, logs):
        self.kept.append([value.copy() for value in self.session.net.param_values()])


@pytest.mark.parametrize("restore", [True, False])
def test_stops_after_its_patience_with_the_best_weights(build, data, feign, restore):
    net, copies = build(), Copies()
    stopping = EarlyStopping("loss", patience=2, restore_best=restore)
    history = net.fit(
        *data, epochs=6, callbacks=[feign(loss=LOSSES), copies, stopping], verbose=False
    )
    assert history.epochs == [0, 1, 2, 3]
    assert "not improved on 3" in history.stopped
    assert stopping.best_epoch == 1
    for got, wanted in zip(net.param_values(), copies.kept[1 if restore else 3], strict=True):
        np.testing.assert_array_equal(got, wanted)
    # Only now: the epochs did differ.
    assert not np.array_equal(copies.kept[1][0], copies.kept[3][0])


def test_more_patience_sees_the_better_end(build, data, feign):
    stopping = EarlyStopping("loss", patience=4)
    history = build().fit(*data, epochs=6, callbacks=[feign(loss=LOSSES), stopping], verbose=False)
    assert history.stopped is None
    assert stopping.best_epoch == 5


def test_names_and_numbers_are_checked_before_a_step(build, data):
    with pytest.raises(UnknownNameError, match="validation_data"):
        build().fit(*data, callbacks=[EarlyStopping("val_loss")], verbose=False)
    with pytest.raises(ArgumentError, match="patience"):
        EarlyStopping(patience=-1)


@pytest.mark.parametrize("patience", [0, 1, 2, 3])
def test_waits_as_long_as_keras(build, data, feign, patience):
    keras = pytest.importorskip("keras")
    losses = [5.0, 3.0, 4.0, 2.9, 3.2, 3.1, 3.3, 1.0]
    theirs = keras.callbacks.EarlyStopping("loss", patience=patience)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.stop_training = False
    theirs.set_model(model)
    theirs.on_train_begin()
    epochs = 0
    while epochs < len(losses) and not model.stop_training:
        theirs.on_epoch_end(epochs, {"loss": losses[epochs]})
        epochs += 1
    stopping = EarlyStopping("loss", patience=patience)
    callbacks = [feign(loss=losses), stopping]
    history = build().fit(*data, epochs=len(losses), callbacks=callbacks, verbose=False)
    assert len(history.epochs) == epochs
