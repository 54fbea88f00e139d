"""Pictures of nets: the layout, the contents and the files."""

from __future__ import annotations

import itertools
import re
import sys
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, BackendError, CallOrderError, FileAccessError
from singanet.layers import Activation, Add, Concat, Conv2D, Dense, Flatten, Slice
from singanet.models import build
from singanet.picture import place
from tests.charts import NEEDED, SVG
from tests.html_check import read_html


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


def siamese():
    left, right = Input("left", (1, 8, 8)), Input("right", (1, 8, 8))
    twin = Conv2D("twin", 2, 3)
    both = Concat("both", 1)(Flatten("fa")(twin(left)), Flatten("fb")(twin(right)))
    first, second = Slice("cut", 1, [100])(both)
    outputs = [Dense("same", 2)(first), Dense("angle", 1)(second)]
    return FeedForwardNet(inputs=[left, right], outputs=outputs, seed=0)


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_every_layer_is_a_box_with_its_name_shape_and_parameters():
    svg = build("lenet", (1, 28, 28)).plot()
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    shown = texts(svg)
    for name in ("conv1", "relu1", "pool1", "flat", "fc2"):
        assert shown.count(name) == 1
    assert {"(1, 28, 28) → (32, 28, 28)", "51,264 parameters", "Activation relu"} <= {*shown}
    assert {"Conv2D 5×5", "MaxPooling2D 2×2, stride 2", "Dropout rate 0.5"} <= {*shown}
    assert len(list(root.iter(f"{SVG}rect"))) == 12 + 1  # and the page


def test_inputs_outputs_sharing_and_numbered_outputs_are_said():
    svg = siamese().plot()
    shown = texts(svg)
    assert {"Input", "(1, 8, 8)"} <= {*shown}
    assert "shares parameters of twin" in shown
    assert "20 parameters, shared" in shown
    assert {"[0]", "[1]"} <= set(shown)
    boxes = [e.get("class") for e in ElementTree.fromstring(svg).iter(f"{SVG}rect")]
    assert sum("shared" in each.split() for each in boxes) == 2
    paths = [e for e in ElementTree.fromstring(svg).iter(f"{SVG}path") if e.get("class") is None]
    assert len(paths) == 9


def test_frozen_and_open_shapes_are_said():
    x = Input("x", (None, 3))
    net = FeedForwardNet(inputs=x, outputs=Activation("tanh", "tanh")(x), seed=0)
    assert {"Activation tanh", "(any, 3)"} <= {*texts(net.plot())}
    net = FeedForwardNet(seed=0)
    net.add(Dense("a", 3, input_sample_shape=(2,)))
    net.add(Dense("b", 3))
    net.freeze("b")
    assert "9 parameters, frozen" in texts(net.plot())


def test_a_parameter_lent_alone_is_said_too():
    net = FeedForwardNet(seed=0)
    coder = net.add(Dense("coder", 3, input_sample_shape=(8,)))
    net.add(Dense("back", 8, W_specs=coder.params["weight"], W_transpose=True))
    assert "shares parameters of coder" in texts(net.plot())
    assert "8 parameters" in texts(net.plot())


def test_equal_blocks_of_a_large_net_are_one_in_a_frame():
    net = build("vit_tiny", (3, 32, 32), 10)
    shown = texts(net.plot())
    assert {"12 × block1 to block12", "…attention", "MultiHeadAttention 3 heads"} <= {*shown}
    assert not [text for text in shown if text.startswith("block")]
    rects = list(ElementTree.fromstring(net.plot()).iter(f"{SVG}rect"))
    of = {kind: [e for e in rects if kind in e.get("class").split()] for kind in ("frame", "port")}
    (frame,) = of["frame"]
    left, top, width, height = (float(frame.get(key)) for key in ("x", "y", "width", "height"))
    inside = [e for e in rects if top < float(e.get("y") or 0) < top + height]
    assert len(inside) == 10 + len(of["port"]) == 12
    for each in inside:
        x, y, wide, high = (float(each.get(key)) for key in ("x", "y", "width", "height"))
        assert left < x < x + wide < left + width
        assert y + high < top + height
    whole = texts(net.plot(fold=False))
    assert sum(text.startswith("block") for text in whole) == 120


def test_a_net_that_is_not_built_shows_its_layers():
    net = FeedForwardNet([Conv2D(4, 3, strides=2, activation="relu"), Flatten(), Dense(3)])
    shown = texts(net.plot())
    assert shown[:3] == ["conv2d", "Conv2D 3×3, stride 2, relu", "not built"]
    assert re.search("^conv2d +Conv2D +not built .*\nflatten .*conv2d\n", net.summary(), re.M)
    assert {"table", "svg"} <= {*read_html(net._repr_html_()).tags}


def test_the_file_is_the_text(tmp_path):
    net = siamese()
    svg = net.plot(tmp_path / "net.SVG")
    assert (tmp_path / "net.SVG").read_text(encoding="utf-8") == svg
    assert [path.name for path in tmp_path.iterdir()] == ["net.SVG"]


@NEEDED
def test_png_has_the_same_proportions_and_is_not_empty(tmp_path):
    from PIL import Image

    net = siamese()
    root = ElementTree.fromstring(net.plot(tmp_path / "net.png"))
    with Image.open(tmp_path / "net.png") as image:
        assert image.format == "PNG"
        wanted = (2 * float(root.get("width")), 2 * float(root.get("height")))
        assert image.size == pytest.approx(wanted, abs=2)
        colours = image.convert("RGB").getcolors(1 << 20)
    assert {(228, 242, 228), (220, 235, 249)} <= {colour for _, colour in colours}


@NEEDED
def test_any_name_can_be_drawn_as_png(tmp_path):
    net = FeedForwardNet(seed=0)
    for name in ("$\\bad$", "数"):
        net.add(Dense(name, 3, input_sample_shape=(3,) if name[0] == "$" else None))
    net.plot(tmp_path / "net.png")
    assert (tmp_path / "net.png").stat().st_size > 1000


def test_png_without_a_renderer_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(BackendError, match=r"net\.plot.*pip install 'singanet\[report\]'"):
        siamese().plot(tmp_path / "net.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["net.pdf", "net", "net.svg.gz"])
def test_other_suffixes_places_and_empty_nets_are_refused(tmp_path, name):
    with pytest.raises(ArgumentError, match=r"expected a file name that ends in \.svg or \.png"):
        siamese().plot(tmp_path / name)
    with pytest.raises(FileAccessError, match=r"missing.*make the folder"):
        siamese().plot(tmp_path / "missing" / "net.svg")
    with pytest.raises(CallOrderError, match="an empty net"):
        FeedForwardNet().plot()
    assert list(tmp_path.iterdir()) == []


def test_notebooks_show_table_and_picture():
    reader = read_html(siamese()._repr_html_())
    assert {"table", "svg"} <= set(reader.tags)
    assert "twin@2" in reader.text
    assert read_html(FeedForwardNet()._repr_html_()).text == ["a net without layers"]


def test_names_are_cut_and_cannot_smuggle_markup():
    evil = '<script>alert("x")</script>&amp;'
    net = FeedForwardNet([Dense("n" * 300, 3, input_sample_shape=(2,))])
    assert "n" * 43 + "…" in texts(net.plot())
    net = FeedForwardNet(seed=0)
    net.add(Dense(evil, 3, input_sample_shape=(2,)))
    net.add(Dense("'><img src=x onerror=y>", 3))
    net.add(Add("sum"), [evil, "'><img src=x onerror=y>"])
    html = net._repr_html_()
    reader = read_html(html)
    assert "img" not in reader.tags
    assert reader.text.count(evil) >= 2  # in the table and in the picture, as it is
    assert evil in texts(net.plot())


def test_plotting_changes_nothing():
    net = siamese()
    before = [value.copy() for value in net.param_values()]
    state = net.rng.bit_generator.state
    net.plot()
    assert net.rng.bit_generator.state == state
    assert all((a == b).all() for a, b in zip(before, net.param_values(), strict=True))
