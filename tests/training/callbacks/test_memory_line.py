import io
import re

from singanet.training.callbacks import MemoryLine


def test_a_line_an_epoch_with_the_largest_layer(build, data):
    stream, net = io.StringIO(), build()
    line = MemoryLine(stream)
    net.fit(*data, epochs=2, callbacks=[line], verbose=False)
    # fc1: 5×8 weights and 8 biases of float32; fc2: 8×3 and 3.
    assert line.gradient_bytes == 4 * (5 * 8 + 8)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    resident, peak = (
        float(re.search(rf"{word} ([\d.]+) MB", lines[1])[1]) for word in ("resident", "peak")
    )
    assert resident > 10
    assert peak > 10
