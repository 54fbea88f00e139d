"""Damaged and hostile run folders give a page or an error of the library, in little time."""

import json
import random
import shutil
import time

import pytest

from singanet.errors import DataError, FileAccessError, SingaNetError
from singanet.report import read_run, recorders, write_comparison, write_report
from singanet.report.reading import WRITTEN
from tests.charts import NEEDED, draw_once

pytestmark = NEEDED
VALUES = [
    *(None, True, False, 0, -1, 1, 2**53, 10**400, -(10**400), 1e308, -1e308, 5e-324, 1e-310),
    *(float("nan"), float("inf"), "", "x", "1", "\ud800", "\x00", "<b>", [], {}, [[]], {"a": {}}),
    *([1, "x"], {"": None}),
]
TEXTS = [
    b"\x00", b"\xff\xfe", b'"', b"\n", b",", b"{", b"]", b"9" * 400, b"-", b"1e999", b"\r", b"NaN",
]  # fmt: skip


@pytest.fixture
def run_dir(fit, tmp_path):
    """A run folder with all its files."""
    folder = tmp_path / "run"
    fit(recorders(folder, {"nested": {"data": [1, {"a": 2}]}}, ["a", "b", "c"]), epochs=2)
    (folder / "figures.json").write_text('{"test_accuracy": 0.5, "seconds": 3}')
    assert {path.name for path in folder.iterdir()} == {*WRITTEN}
    return folder


def places(value, path=()):
    """Yield the paths of the values in a JSON text."""
    yield path
    if isinstance(value, (dict, list)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(part, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def spoilt(raw, name, draw):
    """Return ``raw`` with another JSON value or other bytes in it."""
    if draw.random() < 0.6 and name.endswith((".json", ".jsonl")):
        lines = raw.decode().splitlines() if name.endswith("l") else [raw.decode()]
        at = draw.randrange(len(lines))
        value = json.loads(lines[at])
        new = draw.choice(VALUES)
        lines[at] = json.dumps(replaced(value, draw.choice([*places(value)]), new))
        return "\n".join([*lines, ""]).encode()
    data = bytearray(raw)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(data) + 1)
        data[at : at + draw.choice([0, 1, 1, 5, 50])] = draw.choice([b"", *TEXTS])
    return bytes(data)


@pytest.fixture
def drawn_once(monkeypatch):
    draw_once(monkeypatch)


def fuzz(folder, count, seed):
    """Try damaged folders, and return the number of refused ones."""
    draw, refused = random.Random(seed), 0
    whole = {name: (folder / name).read_bytes() for name in WRITTEN}
    whole_folder = folder.parent / "whole"
    shutil.copytree(folder, whole_folder)
    for _ in range(count):
        name = draw.choice([name for name in WRITTEN if name != "net.svg"])
        (folder / name).write_bytes(spoilt(whole[name], name, draw))
        start, said = time.process_time(), name
        try:
            write_report(folder)
            write_comparison([folder, whole_folder], folder.parent / "page.html")
        except SingaNetError as error:
            refused, said = refused + 1, str(error)
        assert name in said
        assert time.process_time() - start < 2
        (folder / name).write_bytes(whole[name])
    return refused


def test_a_spoilt_file_gives_a_page_or_an_error_of_ours(run_dir, drawn_once):
    assert 10 < fuzz(run_dir, 60, seed=0) < 56


@pytest.mark.slow
def test_many_spoilt_files(run_dir, drawn_once):
    assert fuzz(run_dir, 20_000, seed=1) > 3_000


DEEP = b"[" * 100_000
NAMES = ",".join(f'"p{k}":{{}}' for k in range(2_000))
WIDE = b'{"epoch": 0, "parameters": {%s}}\n' % NAMES.encode()
WIDE += b'{"epoch": 1, "parameters": {}}\n' * 2_000


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("config.json", DEEP),
        ("config.json", b'{"a":' * 1000 + b"1" + b"}" * 1000),
        ("config.json", b'{"a": ' + b"9" * 5000 + b"}"),
        ("figures.json", b"[" + b"{}," * 3_000_000 + b"{}]"),
        ("layers.jsonl", DEEP + b"\n"),
        ("layers.jsonl", b'{"epoch": 0, "parameters": 3}\n'),
        ("layers.jsonl", b'{"epoch": -1, "parameters": {}}\n'),
        ("layers.jsonl", b'{"epoch": 0, "parameters": {"a": 1}}\n'),
        ("layers.jsonl", b'{"epoch": 0, "parameters": {"a": {"weight_norm": "1"}}}\n'),
        ("layers.jsonl", WIDE),
        ("memory.jsonl", b'{"seconds": "x"}\n'),
        ("memory.jsonl", b'{"seconds": 1, "peak": []}\n'),
        ("memory.jsonl", b'{"seconds": 1' + b"0" * 400 + b"}\n"),
        ("history.csv", b"epoch,loss\n0," + b"1" * 200_000 + b"\n1,2\n"),
        ("history.csv", b"epoch," + b"a" * 200_000 + b"\n0,1\n1,2\n"),
        ("history.csv", b"epoch" + b",a" * 3_000 + b"\n"),
        ("history.csv", b"epoch,loss\n-1,2\n0,1\n"),
        ("history.csv", b"epoch,loss\n" + b"9" * 30 + b",2\n0,1\n"),
        ("history.csv", b"epoch\n" + b"1\n" * 3_000_000),
        ("outcome.json", b'{"best_epoch": "x"}'),
        ("outcome.json", b'{"stopped": 3}'),
        ("confusion.json", b'{"labels": ["a"], "counts": [[1' + b"0" * 400 + b"]]}"),
    ],
)
def test_what_is_hostile_is_refused_soon(run_dir, name, raw):
    (run_dir / name).write_bytes(raw)
    start = time.process_time()
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        write_report(run_dir)
    assert time.process_time() - start < 2


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("config.json", b'{"a": "\\ud800", "b": [1, [2, {"c": "\\udfff"}]]}'),
        ("config.json", b"{" + b'"%s": ' % (b"a" * 9000) + b'{"x": 1, "y": {"z": 2}}}'),
        ("history.csv", b"epoch,loss\n0,1.7e308\n1,-1.7e308\n2,nan\n3,inf\n"),
        ("history.csv", b"epoch,loss\n0,0\n1,5e-324\n"),
        ("layers.jsonl", b'{"epoch": 0, "parameters": {"a": {"gradient_norm": 1e299}}}\n'),
        ("memory.jsonl", b'{"seconds": 1e299, "peak": -1e299}\n{"seconds": -1e299, "peak": 1}\n'),
        ("outcome.json", b'{"monitor": "none such", "best_epoch": 7, "of": null, "stopped": "x"}'),
        ("outcome.json", b"{}"),
    ],
)
def test_what_is_odd_is_shown(run_dir, name, raw):
    other = run_dir.parent / "other"
    shutil.copytree(run_dir, other)
    (run_dir / name).write_bytes(raw)
    assert write_report(run_dir).stat().st_size < 1 << 20
    together = write_comparison([run_dir, other], run_dir.parent / "page.html")
    assert together.stat().st_size < 1 << 20


@pytest.mark.few(4)
@pytest.mark.parametrize("name", [*WRITTEN, "report.html"])
def test_nothing_is_followed_out_of_the_folder(run_dir, tmp_path, fit, name):
    victim = tmp_path / "victim"
    victim.write_text("a secret")
    (run_dir / name).unlink(missing_ok=True)
    (run_dir / name).symlink_to(victim)
    with pytest.raises(FileAccessError, match="a file of the folder itself; received a link"):
        write_report(run_dir)
    with pytest.raises(FileAccessError, match="a file of the folder itself; received a link"):
        fit(recorders(run_dir))
    assert victim.read_text("utf-8") == "a secret"
    # A link within the folder leads nowhere else; the user's own target may be one.
    (run_dir / name).unlink()
    (run_dir / "other").write_text("{}" if name.endswith("json") else "")
    (run_dir / name).symlink_to("other")
    out = tmp_path / "page.html"
    out.symlink_to(victim)
    assert write_report(run_dir, out) == out
    assert "<html" in victim.read_text("utf-8")
    read_run(run_dir)
