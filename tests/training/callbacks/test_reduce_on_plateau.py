import pytest

from singanet.errors import ArgumentError
from singanet.optimizer import SGD
from singanet.optimizer.schedules import Cosine
from singanet.training.callbacks import ReduceOnPlateau


def test_falls_after_epochs_without_gain(build, data, feign):
    net = build(optimizer=SGD(lr=0.8))
    watched = feign(loss=[5.0, 4.0, 4.0, 4.0, 4.0, 4.0])
    callback = ReduceOnPlateau("loss", factor=0.5, patience=2)
    history = net.fit(*data, epochs=6, callbacks=[watched, callback], verbose=False)
    assert history["lr"] == [0.8, 0.8, 0.8, 0.8, 0.4, 0.4]
    assert net.compiled.optimizer.lr.value == 0.2


def test_another_schedule_in_the_optimizer_is_refused(build, data):
    net = build(optimizer=SGD(lr=Cosine(0.1, 10)))
    with pytest.raises(ArgumentError, match="Cosine"):
        net.fit(*data, callbacks=[ReduceOnPlateau()], verbose=False)
    with pytest.raises(ArgumentError, match="factor"):
        ReduceOnPlateau(factor=2.0)
