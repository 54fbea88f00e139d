"""Pre-activation and wide residual nets."""

from __future__ import annotations

import pytest

from singanet.errors import ArgumentError
from singanet.models import build


def blocks_by_formula(n, widths, projection):
    """Trained numbers of three stages of ``n`` blocks: normalisation before each convolution."""
    total, into = 0, 16
    for width in widths:
        for block in range(n):
            total += 2 * into + 9 * into * width + 2 * width + 9 * width * width
            if projection and block == 0 and into != width:
                total += into * width
            into = width
    return total


@pytest.mark.parametrize("depth", [20, 56, 110])
def test_pre_activation_nets_count_as_the_formula_says(depth, count):
    n = (depth - 2) // 6
    expected = 27 * 16 + blocks_by_formula(n, (16, 32, 64), False) + 2 * 64 + 65 * 10
    assert count(build(f"preresnet{depth}"))[0] == expected


# Zagoruyko and Komodakis, 2016, tables 4 and 5, in millions.
@pytest.mark.parametrize(("depth", "widen", "published"), [(16, 4, 2.7), (28, 10, 36.5)])
def test_wide_nets_have_the_published_count(depth, widen, published, count):
    widths = (16 * widen, 32 * widen, 64 * widen)
    n = (depth - 4) // 6
    expected = 27 * 16 + blocks_by_formula(n, widths, True) + 2 * widths[2]
    expected += (widths[2] + 1) * 10
    trained, _ = count(build(f"wrn-{depth}-{widen}"))
    assert trained == expected
    assert trained / 1e6 == pytest.approx(published, abs=0.05)


@pytest.mark.parametrize("name", ["preresnet20", "wrn-16-4"])
def test_they_learn_small_images(name, learns):
    learns(build(name, (1, 8, 8), 4, seed=0), (1, 8, 8), 4)


def test_dropout_lies_between_the_convolutions_of_a_block():
    net = build("wrn-16-4", (3, 8, 8), 10, dropout=0.3)
    assert net["stage3_block2_drop"].p == 0.3
    assert "stage3_block2_drop" not in build("wrn-16-4", (3, 8, 8), 10)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"depth": 20}, r"depth: expected 6n \+ 4"),
        ({"widen": 0}, "widen: expected an int of at least 1"),
    ],
)
def test_options_that_make_no_net_are_refused(options, said):
    with pytest.raises(ArgumentError, match=f"wide resnet, argument {said}"):
        build("wrn-16-4", **options)
