"""Stored arrays are in memory for the calls that use them, in the memory that was given."""

import time

import numpy as np
import pytest

from singanet.program.ir import Call, Kernel, NotRecordableError, Ref, Token, map_leaves
from singanet.program.loads import LoadedArray, with_loads

F32 = np.dtype(np.float32)


class Store:
    """Arrays by name, of which a slow disk has the values."""

    def __init__(self, sizes, keep, rng):
        self.keep, self.loaded, self.rng, self.kept = keep, {}, rng, frozenset()
        self.values = {name: np.zeros(size, np.float32) for name, size in sizes.items()}
        self.reads = 0

    def begin(self, run):
        return self.kept

    def rest(self, rests):
        pass

    def end(self, names):
        self.loaded.clear()
        self.kept = names

    def fill(self, name, array):
        time.sleep(self.rng.random() / 5_000)
        self.reads += array.nbytes
        array[...] = self.values[name]

    def drain(self, name, array):
        time.sleep(self.rng.random() / 5_000)
        self.values[name][...] = array

    def read(self, name):
        return self.values[name]


def planned(seed, room):
    """A store, and random calls of some layers there and back that use its arrays.

    There is ``room`` times the bytes that a layer uses.
    """
    rng = np.random.default_rng(seed)
    layers = [
        [f"{layer}.{k}" for k in range(rng.integers(1, 4))] for layer in range(rng.integers(2, 9))
    ]
    shared = layers[0][0]
    sizes = {name: int(rng.integers(1, 40)) * 16 for names in layers for name in names}
    most = 4 * max(sum(sizes[name] for name in {*names, shared}) for names in layers)
    store = Store(sizes, int(room * most), np.random.default_rng(seed))
    names, counts = list(sizes), dict.fromkeys(sizes, 0)
    strides = F32.itemsize
    tokens = [Token(0, LoadedArray(store, name, (sizes[name],), (strides,), F32)) for name in names]
    calls = []

    def use(layer, phase, used, changed):
        numbers = [names.index(name) for name in used]
        refs = [Ref(k, 0, (sizes[names[k]],), (strides,), F32) for k in numbers]

        def check(arrays):
            for name, array in zip(used, arrays, strict=True):
                assert np.array_equal(array, np.full(sizes[name], counts[name], np.float32))
                if name in changed:
                    counts[name] += 1
                    array += 1

        writes = tuple(names.index(name) for name in changed)
        calls.append(Call(check, (refs,), {}, tuple(numbers), writes, layer=layer, phase=phase))

    def some(names):
        more = [shared] if rng.random() < 0.3 else []
        return list(dict.fromkeys([*rng.permutation(names)[: rng.integers(1, 4)].tolist(), *more]))

    for k, each in enumerate(layers):
        for _ in range(rng.integers(1, 3)):
            use(str(k), "forward", some(each), ())
    for k, each in reversed([*enumerate(layers)]):
        use(str(k), "backward", some(each), ())
        used = some(each)
        use(str(k), "update", used, [name for name in used if rng.random() < 0.8])
    kernels = [Kernel("call", (), ()) for _ in calls]
    return store, counts, with_loads(calls, kernels, tokens, 0)


def replay(calls, loads):
    """Make the calls on a new memory, or the one given with them."""
    memory = np.full(loads.nbytes, 255, np.uint8)

    def array(ref):
        return ref.array(memory)

    def run():
        with loads.running(array):
            for call in calls:
                call.function(*map_leaves(call.arguments, Ref, array))

    return run


@pytest.mark.parametrize("room", [1.0, 1.3, 2.5, 100])
@pytest.mark.parametrize("seed", range(12))
def test_calls_find_the_values_that_the_last_ones_left(seed, room):
    try:
        store, counts, (calls, kernels, loads) = planned(seed, room)
    except NotRecordableError:
        # Arrays of unlike sizes found no place beside each other.
        assert room < 2
        return
    assert loads.nbytes <= store.keep
    assert len(calls) == len(kernels)
    run = replay(calls, loads)
    for _ in range(3):
        before = store.reads
        run()
        for name, value in store.values.items():
            assert np.all(value == counts[name])
    # What is kept is read once.
    assert room < 100 or store.reads == before


@pytest.mark.parametrize("at", [0, 3, 7])
def test_an_error_of_the_store_ends_the_replay(at):
    store, _, (calls, _, loads) = planned(1, 1.3)
    left, fill = [at], store.fill

    def fails(name, array):
        left[0] -= 1
        if left[0] < 0:
            raise OSError("no such disk")
        fill(name, array)

    store.fill = fails
    with pytest.raises(OSError, match="no such disk"):
        replay(calls, loads)()
    assert not store.loaded
    assert not store.kept
