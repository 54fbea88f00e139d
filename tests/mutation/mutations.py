"""Changes that break parsers: of bytes, and of trees of lists and dicts."""

import copy

INTERESTING = [
    *(0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF),
    *(2**63 - 1, 2**64 - 1),
]
VALUES = [
    None, True, False, 0, 1, -1, 2, 7, 2**16, 2**31, 2**63, 10**12, 10**30, 0.5, -0.0, 1e308,
    float("nan"), float("inf"), "", "x", "fc", "Dense", "LSTM", "MultiLoss", "\ud800", "a/b", "..",
    [], [1], [[2], [2]], [2**31, 2**31], [0], {}, {"dict": {}}, {"parameter": "fc/weight"},
    {"initializer": "Uniform", "low": 0}, {"object": {"class": "Dense", "arguments": {}}},
    {"class": "SGD", "arguments": {}}, {"dict": {"init": "constant", "value": 1e30}},
]  # fmt: skip


def changed(raw, rng):
    """``raw`` with one to eight bytes, or runs of them, changed, removed, doubled or cut off."""
    data = bytearray(raw)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 8])):
        at = rng.randrange(len(data)) if data else 0
        kind = rng.randrange(7)
        if kind == 0 and data:
            data[at] = rng.randrange(256)
        elif kind == 1 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            size = rng.choice([1, 2, 4, 8])
            value = rng.choice(INTERESTING) & ((1 << 8 * size) - 1)
            data[at : at + size] = value.to_bytes(size, rng.choice(["little", "big"]))
        elif kind == 3:
            del data[at : at + rng.choice([1, 2, 8, 64])]
        elif kind == 4:
            data[at:at] = rng.randbytes(rng.choice([1, 2, 8, 64]))
        elif kind == 5:
            other = rng.randrange(len(data)) if data else 0
            size = rng.choice([4, 16, 64])
            data[at : at + size] = data[other : other + size]
        else:
            del data[at:]
    return bytes(data)


def places(value):
    """Every ``(holder, key)`` inside ``value``."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


def mutated(about, rng):
    """``about`` with one to three values replaced, removed, doubled or moved."""
    about = copy.deepcopy(about)
    for _ in range(rng.choice([1, 1, 2, 3])):
        found = list(places(about))
        if not found:
            break
        holder, key = rng.choice(found)
        other_holder, other_key = rng.choice(found)
        kind = rng.randrange(5)
        if kind < 2:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
        elif kind == 2:
            del holder[key]
        elif kind == 3:
            holder[key] = copy.deepcopy(other_holder[other_key])
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            holder[str(rng.choice(VALUES))] = holder[key]
    return about
