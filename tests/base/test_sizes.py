"""Bytes with units."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.base.kinds import bytes_text, checked_bytes
from singanet.errors import ArgumentError


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (600, 600), (np.int64(7), 7), ("600MB", 600_000_000), (" 1.5 GB ", 1_500_000_000),
        ("64KiB", 65536), ("0.5MiB", 524288), ("2GiB", 2147483648), ("3kB", 3000), ("3KB", 3000),
        ("12B", 12), ("1.000000000000001GB", 1_000_000_000),
    ],
)  # fmt: skip
def test_numbers_and_texts(given, wanted):
    assert checked_bytes("net.fit", given) == wanted


@pytest.mark.parametrize(
    "given",
    [0, -1, 1.5, True, None, "", "600", "MB", "-3MB", "1e3MB", "600mb", "1 TB", "nan MB", "0.1B",
     "0MB", "1,5MB", "1..5MB", "٣MB", ["600MB"], b"600MB", "9" * 40 + "B"],
)  # fmt: skip
def test_what_is_no_size_is_refused(given):
    with pytest.raises(ArgumentError, match="net.fit: expected bytes.*write for example '600MB'"):
        checked_bytes("net.fit", given)


@given(st.integers(1, 10**14))
def test_what_is_shown_is_read_again_within_its_digits(nbytes):
    again = checked_bytes("x", bytes_text(nbytes).replace(",", ""))
    assert abs(again - nbytes) <= 0.05 * nbytes
