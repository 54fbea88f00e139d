import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data.tokens import text_files
from singanet.data.tokens.text_files import TextFiles
from singanet.errors import DataError


def records(paths, window=1 << 20):
    files = TextFiles(paths, window)
    return [each for block in range(len(files.blocks)) for each in files.records(block)]


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 60), st.booleans())
def test_every_line_is_in_one_block(tmp_path_factory, lengths, window, ended):
    path = tmp_path_factory.mktemp("lines") / "some.jsonl"
    lines = [json.dumps({"text": f"{k}" + "é" * size}) for k, size in enumerate(lengths)]
    path.write_text("\n".join(lines) + "\n" * ended, "utf-8")
    found = records(path, window)
    assert [json.dumps(each.entry) for each in found] == lines
    assert [each.where.rpartition(" ")[2] for each in found] == [
        str(k + 1) for k in range(len(lines))
    ]


@given(st.lists(st.text("aé\n \r", max_size=12), max_size=12), st.integers(1, 40))
def test_a_text_is_cut_at_line_ends(tmp_path_factory, pieces, window):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    text = "".join(pieces)
    path.write_bytes(text.encode())
    found = records(path, window)
    # A line end of two characters is never cut, as only the second ends a line.
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    assert "".join(each.entry["text"] for each in found) == plain
    assert [each.begins for each in found] == [k == 0 for k in range(len(found))]
    assert [each.ends for each in found] == [k + 1 == len(found) for k in range(len(found))]


def test_files_below_a_folder_come_in_order_and_small_ones_together(tmp_path):
    for name in ("b.txt", "a/c.TXT", "a/d.jsonl", ".hidden.txt", "notes.md"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"text": name}))
    files = TextFiles(tmp_path, 60)
    assert [file.name for file in files.sizes] == ["c.TXT", "d.jsonl", "b.txt"]
    assert [len(block) for block in files.blocks] == [3]
    assert len(records([tmp_path / "b.txt", tmp_path / "a"])) == 3


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "x"}\n')
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfx")
    assert [each.entry["text"] for each in records(tmp_path)] == ["x", "x"]


@pytest.mark.parametrize(("line", "told"), [
    (b'{"text": "x"', "line 3: expected a line in JSON"),
    (b'["text"]', "line 3: expected a JSON object; received list"),
    (b"7", "line 3: expected a JSON object; received int"),
    (b'{"text": "\xff"}', "line 3: expected text in UTF-8; received the byte 0xff"),
    (b"[" * 5000, "line 3: expected a line in JSON|line 3: expected at most"),
    (b'{"a": ' * 300 + b"1" + b"}" * 300, "line 3: expected at most 200 nested levels"),
    (b'{"text": ' + b"9" * 5000 + b"}", "line 3: expected a line in JSON"),
])  # fmt: skip
def test_bad_lines_are_named(tmp_path, line, told):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "x"}\n\n' + line + b"\n")
    for window in (1 << 20, 10):
        with pytest.raises(DataError, match=told):
            records(path, window)


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_bad_bytes_of_a_text_are_named(tmp_path, bom):
    (tmp_path / "a.txt").write_bytes(bom + b"one\ntwo\n\xe9t\xe9\n")
    with pytest.raises(DataError, match="line 3: expected text in UTF-8; received the byte 0xe9"):
        records(tmp_path)


def test_long_lines_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "MAX_LINE", 100)
    (tmp_path / "a.txt").write_bytes(b"x\n" + b"y" * 101)
    for window in (1000, 7):
        with pytest.raises(DataError, match="line 2: expected a line of at most 100 bytes"):
            records(tmp_path, window)


def test_a_file_that_changes_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("x\n")
    files = TextFiles(tmp_path, 100)
    (tmp_path / "a.txt").write_text("x\ny\n")
    with pytest.raises(DataError, match="expected 2 bytes, as when the loader was made"):
        list(files.records(0))


@pytest.mark.parametrize("path", ["missing.txt", "folder", "a.csv"])
def test_what_is_no_text_file(tmp_path, path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(DataError):
        TextFiles(tmp_path / path, 100)
