import itertools
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from singanet.data.tokens.text_files import IGNORED, batch_of, fragments, packed, padded, width_of

texts = st.lists(st.lists(st.integers(0, 90), min_size=0, max_size=40), max_size=25)


def pairs_of(text):
    """Each token with the one after it."""
    return list(itertools.pairwise(text))


def parts_of(several, length):
    return [part for text in several for part in fragments(np.array(text, np.int32), None, length)]


@given(st.lists(st.integers(0, 99), max_size=60), st.integers(1, 12), st.data())
def test_fragments_have_every_pair_once(text, length, data):
    ids = np.array(text, np.int32)
    answers = np.array([data.draw(st.booleans()) for _ in text], bool)
    parts = fragments(ids, answers, length)
    assert all(1 <= len(part.ids) == len(part.targets) <= length for part in parts)
    found = [pair for part in parts for pair in zip(*map(np.ndarray.tolist, part), strict=True)]
    wanted = [
        (first, after if answers[k + 1] else IGNORED)
        for k, (first, after) in enumerate(pairs_of(text))
    ]
    assert found == wanted


@given(texts, st.integers(1, 16))
def test_packing_loses_nothing_and_doubles_nothing(several, length):
    rows = packed(parts_of(several, length), length)
    x, y = batch_of(rows, length, 99) if rows else ({"input_ids": []}, [])
    found = Counter()
    for r in range(len(rows)):
        ids, segments, targets = x["input_ids"][r], x["segments"][r], y[r]
        assert (x["attention_mask"][r] == (segments > 0)).all()
        assert (targets[segments == 0] == IGNORED).all()
        # Segments rise by one, then comes the padding.
        used = segments[segments > 0]
        assert (segments[: len(used)] == used).all()
        assert set(np.diff(used)) <= {0, 1}
        assert used[0] == 1
        for t in range(len(used)):
            found[ids[t], targets[t]] += 1
            inside = t + 1 < len(used) and segments[t + 1] == segments[t]
            # Within a segment the target is the next token: none is of another text.
            assert not inside or targets[t] == ids[t + 1]
    assert found == Counter(pair for text in several for pair in pairs_of(text))


@given(texts, st.integers(1, 16))
def test_rows_are_as_few_as_best_fit_makes_them(several, length):
    rows = packed(parts_of(several, length), length)
    filled = [sum(len(part.ids) for part in row) for row in rows]
    assert all(0 < size <= length for size in filled)
    # Two rows that fit into one would have been one.
    assert sum(2 * size <= length for size in filled) <= 1


@given(texts, st.integers(1, 5), st.integers(0, 9))
def test_padding_has_a_text_a_row_in_few_widths(several, together, seed):
    lengths = (4, 8, 16)
    parts = parts_of(several, 16)
    rows = padded(parts, lengths, together, np.random.default_rng(seed))
    assert len(rows) % together == 0
    assert sum(not row for row in rows) < together
    assert all(len(row) <= 1 for row in rows)
    kept = sorted(row[0].ids.tobytes() + row[0].targets.tobytes() for row in rows if row)
    assert kept == sorted(part.ids.tobytes() + part.targets.tobytes() for part in parts)
    widths = [width_of(rows[k : k + together], lengths) for k in range(0, len(rows), together)]
    # Texts of one length are in whole batches, but for one at each end.
    needed = Counter(next(each for each in lengths if each >= len(part.ids)) for part in parts)
    for length in lengths:
        longer = sum(count for size, count in needed.items() if size >= length)
        assert sum(width >= length for width in widths) <= -(-longer // together) + 1
