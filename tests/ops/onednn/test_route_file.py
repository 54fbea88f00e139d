"""The file of measured routes: what is written comes back; what is damaged or foreign is told."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.errors import FileAccessError
from singanet.ops import costs
from singanet.ops.costs import KERNELS, ROUTES, Case, NotRoutesError, entries_of, read_entries
from singanet.ops.window import Window

WINDOW = Window((3, 3), (1, 1), ((1, 1), (0, 2)))
CASE = Case("forward", (8, 16, 7, 9), (32, 16, 3, 3), WINDOW)
OTHER = Case("data", (8, 16, 7, 9), (32, 4, 3, 3), replace(WINDOW, groups=4))


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The file that the environment names, in a folder that is not there yet."""
    named = tmp_path / "deeper" / "routes.json"
    monkeypatch.setenv("SINGANET_ROUTES", str(named))
    return named


def test_what_is_added_is_read_by_number_of_threads(path):
    costs.keep("3.9.1", 1, {CASE: "product"})
    costs.keep("3.9.1", 2, {CASE: "direct"})
    costs.keep("3.9.1", 1, {OTHER: "numpy"})
    assert costs.read("3.9.1").choices == {
        1: {CASE: "product", OTHER: "numpy"},
        2: {CASE: "direct"},
    }
    costs.keep("3.9.1", 1, {CASE: "product"})
    assert costs.read("3.9.1").choices[1][CASE] == "product"
    assert os.listdir(path.parent) == [path.name]


counts = st.integers(1, 2**40)
pairs = st.tuples(counts, counts)
pads = st.tuples(st.integers(0, 9), st.integers(0, 9))
shapes = st.tuples(counts, counts, counts, counts)
cases = st.builds(
    Case,
    st.sampled_from(KERNELS),
    shapes,
    shapes,
    st.builds(Window, pairs, pairs, st.tuples(pads, pads), pairs, groups=counts),
)


@given(
    st.dictionaries(
        counts, st.dictionaries(cases, st.sampled_from(ROUTES), min_size=1, max_size=3), max_size=3
    )
)
def test_any_choices_survive_as_text(choices):
    assert read_entries(json.loads(json.dumps(entries_of(choices)))) == choices


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
(ENTRY,) = entries_of({1: {CASE: "product"}})


@given(st.sampled_from(sorted(ENTRY)), json_values)
def test_a_changed_value_is_refused_or_comes_back(key, value):
    entry = json.loads(json.dumps({**ENTRY, key: value}))
    try:
        found = read_entries([entry])
    except NotRoutesError:
        return
    assert json.loads(json.dumps(entries_of(found))) == [entry]


@pytest.mark.parametrize("key", sorted(ENTRY))
def test_a_missing_value_is_refused(key):
    entry = json.loads(json.dumps(ENTRY))
    del entry[key]
    with pytest.raises(NotRoutesError):
        read_entries([entry])


def test_no_file_is_no_choices(path):
    assert costs.read("3.9.1").choices == {}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe\x00", "not used"),
        (b"[1]", "another kind"),
        (b'{"format": "else"}', "another kind"),
        (b'{"format": "singanet routes", "version": 1}', "its version is 1, not 4"),
        (b"[" * 100_000, "not used"),
    ],
)
def test_a_damaged_file_is_told_and_not_used(path, content, reason):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.warns(RuntimeWarning, match=reason) as told:
        assert costs.read("3.9.1").choices == {}
    (warning,) = told
    for part in (repr(str(path)), "singanet tune", "SINGANET_ROUTES=off"):
        assert part in str(warning.message)


def test_damaged_choices_are_told(path):
    costs.keep("3.9.1", 1, {CASE: "product"})
    path.write_text(path.read_text("utf-8").replace("product", "windmill"))
    with pytest.warns(RuntimeWarning, match="choice 0 is damaged"):
        assert costs.read("3.9.1").choices == {}
    path.write_text(path.read_text("utf-8")[:-40])
    with pytest.warns(RuntimeWarning, match="not used"):
        assert costs.read("3.9.1").choices == {}


def test_a_file_of_another_machine_or_library_is_told(path, monkeypatch):
    costs.keep("3.9.1", 1, {CASE: "product"})
    with pytest.warns(RuntimeWarning, match=r"measured on .*3\.9\.1.*, not on .*3\.10\.0"):
        assert costs.read("3.10.0").choices == {}
    monkeypatch.setattr(costs, "processor", lambda: "Another 9000")
    with pytest.warns(RuntimeWarning, match="Another 9000"):
        assert costs.read("3.9.1").choices == {}


def test_what_cannot_be_read_is_told(path):
    path.mkdir(parents=True)
    with pytest.warns(RuntimeWarning, match="Is a directory"):
        assert costs.read("3.9.1").choices == {}


def test_a_pipe_is_not_waited_for(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    with pytest.warns(RuntimeWarning, match="pipe"):
        assert costs.read("3.5").choices == {}


def test_a_huge_file_is_not_loaded(path, monkeypatch):
    path.parent.mkdir()
    path.write_bytes(b" " * 101)
    monkeypatch.setattr(costs, "_MOST_BYTES", 100)
    with pytest.warns(RuntimeWarning, match="the file is too large"):
        assert costs.read("3.9.1").choices == {}


def test_adding_to_a_damaged_file_tells_so_and_replaces_it(path):
    path.parent.mkdir()
    path.write_text("nonsense")
    with pytest.warns(RuntimeWarning, match="not used"):
        costs.keep("3.9.1", 1, {CASE: "direct"})
    assert costs.read("3.9.1").choices == {1: {CASE: "direct"}}


def test_a_place_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SINGANET_ROUTES", str(blocked / "routes.json"))
    with (
        pytest.warns(RuntimeWarning, match="not used"),
        pytest.raises(FileAccessError, match="expected a place to write"),
    ):
        costs.keep("3.9.1", 1, {CASE: "direct"})
    assert stat.S_ISREG(blocked.stat().st_mode)


def test_where_the_file_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("SINGANET_ROUTES", "off")
    assert costs.path_of("3.9.1") is None
    assert costs.read("3.9.1").choices == {}
    monkeypatch.setenv("SINGANET_ROUTES", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = costs.path_of("3.9.1")
    assert found.parent == tmp_path / "singanet"
    assert found != costs.path_of("3.10.0")
    assert found == costs.path_of("3.9.1")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert costs.path_of("3.9.1").parent == tmp_path / "home" / ".cache" / "singanet"
    monkeypatch.setenv("HOME", "relative")
    assert costs.path_of("3.9.1") is None
    assert "HOME" in costs.why_none()
    named = tmp_path / "routes.json"
    monkeypatch.setenv("SINGANET_ROUTES", str(named))
    assert costs.path_of("3.9.1") == named


def test_the_processor_has_a_name():
    assert len(costs.processor()) > 3
