import signal
import threading

import pytest

from singanet.training import Callback
from singanet.training.callbacks import ModelCheckpoint, StopOnSignal


class Send(Callback):
    """Sends this process a signal in the middle of its third step."""

    def __init__(self, number):
        self.number = number

    def on_layer_gradients(self, names, values, grads):
        if self.session.step == 2 and self.session.layer == "relu":
            signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_step_is_finished_and_saved(build, data, tmp_path, number):
    before = signal.getsignal(number)
    guard = StopOnSignal()
    callbacks = [guard, Send(number), ModelCheckpoint(tmp_path)]
    net = build()
    history = net.fit(*data, batch_size=10, epochs=3, callbacks=callbacks, verbose=False)
    assert guard.received == number
    assert history.stopped == f"received {number.name}"
    assert signal.getsignal(number) is before
    whole, again = build(), build(seed=4)
    expected = whole.fit(*data, batch_size=10, epochs=3, verbose=False)
    callbacks = [StopOnSignal(), Callback(), ModelCheckpoint(tmp_path)]
    got = again.fit(
        *data, batch_size=10, epochs=3, callbacks=callbacks, resume=tmp_path, verbose=False
    )
    assert got == expected


def test_without_a_signal_nothing_is_changed(build, data):
    before = signal.getsignal(signal.SIGINT)
    guard = StopOnSignal()
    build().fit(*data, callbacks=[guard], verbose=False)
    assert guard.received is None
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_it_does_nothing(build, data):
    done = []
    thread = threading.Thread(
        target=lambda: done.append(
            build().fit(*data, callbacks=[StopOnSignal()], verbose=False).stopped
        )
    )
    thread.start()
    thread.join()
    assert done == [None]
