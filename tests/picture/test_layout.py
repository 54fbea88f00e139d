"""Boxes do not overlap, lines go down, and what is simple looks simple."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.picture import place


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 14))
    pairs = list(itertools.combinations(range(count), 2))
    edges = draw(st.lists(st.sampled_from(pairs), max_size=25, unique=True)) if pairs else []
    extent = st.floats(20, 200)
    return draw(st.lists(st.tuples(extent, extent), min_size=count, max_size=count)), edges


@given(graphs())
def test_no_two_boxes_overlap_and_all_lie_in_the_picture(graph):
    sizes, edges = graph
    layout = place(sizes, edges)
    boxes = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(layout.corners, sizes, strict=True)]
    for a, b in itertools.combinations(boxes, 2):
        apart_x = a[2] < b[0] or b[2] < a[0]
        assert apart_x or a[3] < b[1] or b[3] < a[1]
    for left, top, right, bottom in boxes:
        assert left >= 0
        assert top >= 0
        assert right <= layout.width
        assert bottom <= layout.height


@given(graphs())
def test_edges_run_downwards_from_box_to_box_around_the_others(graph):
    sizes, edges = graph
    layout = place(sizes, edges)
    for (source, target), route in zip(edges, layout.routes, strict=True):
        assert route[0][1] == pytest.approx(layout.corners[source][1] + sizes[source][1])
        assert route[-1][1] == pytest.approx(layout.corners[target][1])
        heights = [y for _, y in route]
        assert heights == sorted(heights)
        for end, node in ((route[0], source), (route[-1], target)):
            left = layout.corners[node][0]
            assert left <= end[0] <= left + sizes[node][0]
        for x, y in route[1:-1]:
            for (left, top), (width, height) in zip(layout.corners, sizes, strict=True):
                assert not (left < x < left + width and top < y < top + height)


def test_a_chain_is_a_straight_column():
    layout = place([(100, 40), (160, 40), (60, 50)], [(0, 1), (1, 2)])
    assert len({round(x, 6) for route in layout.routes for x, _ in route}) == 1


def test_branches_stand_evenly_beside_the_middle():
    layout = place([(80, 40)] * 5, [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)])
    x = [corner[0] for corner in layout.corners]
    assert x[0] == pytest.approx(x[2])
    assert x[4] == pytest.approx(x[2])
    assert x[2] - x[1] == pytest.approx(x[3] - x[2])


def test_a_line_that_passes_layers_by_leaves_them_straight():
    # 0 → 1 → 2 → 3 → 4 and 0 → 4
    layout = place([(80, 40)] * 5, [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)])
    x = [corner[0] for corner in layout.corners]
    assert max(x[1:4]) - min(x[1:4]) < 0.5
    assert abs(x[0] - x[1]) < 20


def test_the_order_along_a_row_avoids_crossings():
    # Two chains whose nodes come interleaved and swapped.
    layout = place([(60, 30)] * 6, [(0, 3), (1, 2), (2, 5), (3, 4)])
    x = [corner[0] for corner in layout.corners]
    assert (x[0] < x[1]) == (x[3] < x[2]) == (x[4] < x[5])


def test_an_input_stands_just_above_the_layer_that_reads_it():
    layout = place([(60, 30)] * 4, [(0, 1), (1, 3), (2, 3)])
    assert layout.corners[2][1] == layout.corners[1][1]


def test_deep_nets_need_no_recursion():
    count = 3000
    layout = place([(60, 30)] * count, [(k, k + 1) for k in range(count - 1)])
    assert layout.height > 60 * count
