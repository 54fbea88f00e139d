import pytest

from singanet.errors import ArgumentError, CallOrderError
from singanet.training import Callback


def test_outside_a_fit_there_is_no_session():
    with pytest.raises(CallOrderError, match="callbacks="):
        _ = Callback().session


def test_a_callback_stands_in_a_fit_once(build, data):
    one = Callback()
    with pytest.raises(ArgumentError, match="twice"):
        build().fit(*data, callbacks=[one, one], verbose=False)


def test_those_that_run_last_do_so_wherever_they_stand(build, data):
    order = []

    class Note(Callback):
        def __init__(self, name, last=False):
            self.name = name
            self._runs_last = last

        def on_epoch_end(self, epoch, logs):
            order.append(self.name)

    build().fit(*data, callbacks=[Note("a", True), Note("b"), Note("c")], verbose=False)
    assert order == ["b", "c", "a"]


def test_an_error_within_on_error_does_not_hide_the_first(build, data):
    class Bad(Callback):
        def on_batch_end(self, batch, logs):
            raise RuntimeError("first")

        def on_error(self, error):
            raise OSError("second")

    with (
        pytest.raises(RuntimeError, match="first"),
        pytest.warns(RuntimeWarning, match="on_error failed: second"),
    ):
        build().fit(*data, callbacks=[Bad()], verbose=False)
