import pytest

from singanet.errors import ArgumentError
from singanet.optimizer import SGD
from singanet.training.callbacks import LearningRate


def test_the_rate_of_every_epoch_is_the_schedules(build, data):
    optimizer = SGD(lr=9.0)
    net = build(optimizer=optimizer)
    callback = LearningRate(lambda epoch: 0.1 * 0.5**epoch)
    history = net.fit(*data, epochs=3, callbacks=[callback], clip=1.0, verbose=False)
    assert history["lr"] == [0.1, 0.05, 0.025]
    assert optimizer.lr == 0.025


def test_a_schedule_of_two_arguments_gets_the_rate_before(build, data):
    callback = LearningRate(lambda epoch, rate: rate if epoch < 1 else rate / 2)
    history = build(optimizer=SGD(lr=0.2)).fit(*data, epochs=3, callbacks=[callback], verbose=False)
    assert history["lr"] == [0.2, 0.1, 0.05]


def test_rates_that_are_none(build, data):
    with pytest.raises(ArgumentError, match="function of the epoch"):
        LearningRate(0.1)
    for rate in (-1.0, float("nan"), "0.1"):
        with pytest.raises(ArgumentError, match="epoch 0"):
            build().fit(*data, callbacks=[LearningRate(lambda epoch, r=rate: r)], verbose=False)
