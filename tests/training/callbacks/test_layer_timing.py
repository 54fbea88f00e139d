import time

import pytest

from singanet.layers import Activation
from singanet.training import Callback
from singanet.training.callbacks import LayerTiming


class Slow(Activation):
    """Sleeps in both directions."""

    def forward(self, ctx, x):
        time.sleep(0.002)
        return super().forward(ctx, x)

    def backward(self, ctx, dy):
        time.sleep(0.004)
        return super().backward(ctx, dy)


def test_time_is_put_down_to_the_layer_that_takes_it(build, data):
    net, timing = build(), LayerTiming()
    net.add(Slow("slow", "tanh"))
    net.fit(*data, batch_size=10, callbacks=[timing], verbose=False)
    # Four steps; a sleep never ends early.
    assert timing.forward["slow"] >= 4 * 0.002
    assert timing.backward["slow"] >= 4 * 0.004
    assert list(timing.forward) == ["fc1", "relu", "fc2", "slow"]
    assert all(seconds > 0 for seconds in timing.backward.values())
    lines = timing.table().splitlines()
    assert [line.split()[0] for line in lines] == ["layer", *timing.forward]


def test_the_layers_are_as_before_also_after_an_error(build, data):
    class Bad(Callback):
        def on_batch_end(self, batch, logs):
            raise RuntimeError

    net = build()
    for callbacks in ([LayerTiming()], [LayerTiming(), Bad()]):
        if len(callbacks) == 1:
            net.fit(*data, callbacks=callbacks, verbose=False)
        else:
            with pytest.raises(RuntimeError):
                net.fit(*data, callbacks=callbacks, verbose=False)
        for layer in net.layers:
            assert not {"forward", "backward"} & set(vars(layer))
