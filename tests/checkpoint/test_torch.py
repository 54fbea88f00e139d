"""PyTorch's files: what it writes, what no file may do, and what is refused by name."""

from __future__ import annotations

import io
import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from singanet.checkpoint import open_state
from singanet.errors import FileFormatError, UnsafeFileError
from tests.checkpoint.format_case import ReaderCase
from tests.kit.files import Reduced, names_in, zip_file

torch = pytest.importorskip("torch", reason="compares with PyTorch: pip install '.[peers]'")


WRITTEN = {
    "zip": {},
    "stream": {"_use_new_zipfile_serialization": False},
    "zip of protocol 4": {"pickle_protocol": 4},
    "stream of protocol 4": {"_use_new_zipfile_serialization": False, "pickle_protocol": 4},
}
BASE = torch.arange(24.0).reshape(2, 3, 4)
STATE = {
    "turned": BASE.transpose(0, 2), "some.of.it": BASE[:, 1:, ::2], "all": BASE,
    "expanded": torch.ones(1).expand(5, 6), "half": torch.tensor([0.1, 6e4]).half(),
    "parameter": torch.nn.Parameter(torch.ones(2, dtype=torch.float64)),
    "bfloat16": torch.tensor([1.0, -2.5, 3e38, float("nan")]).bfloat16(),
    "bools": torch.tensor([True, False]), "empty": torch.zeros(0, 3), "count": torch.tensor(4),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "uint16": torch.tensor([1, 65535], dtype=torch.uint16),
}  # fmt: skip
FILES = Path(__file__).parent / "files"


def rewritten(edit: Any) -> bytes:
    """A file whose members went through ``edit(name, bytes)``, which may give None."""
    stream = io.BytesIO()
    torch.save({"a": torch.arange(6.0).reshape(2, 3)}, stream)
    with zipfile.ZipFile(stream) as old:
        members = [(each, edit(each.partition("/")[2], old.read(each))) for each in old.namelist()]
    return zip_file(*(each for each in members if each[1] is not None))


def claiming(old: bytes, new: bytes) -> bytes:
    """A file whose pickle says ``new`` for ``old``."""

    def edit(name: str, content: bytes) -> bytes:
        if name != "data.pkl":
            return content
        assert content.count(old) == 1
        return content.replace(old, new)

    return rewritten(edit)


CLAIMS = {
    "beyond the storage": (b"K\x00K\x02K\x03\x86", b"K\x01K\x02K\x03\x86"),
    "another size": (b"K\x02K\x03\x86", b"K\x03K\x03\x86"),
    "expanded for ever": (
        b"K\x02K\x03\x86q\x08K\x03K\x01\x86", b"J\0\0\0\x7fJ\0\0\0\x7f\x86q\x08K\0K\0\x86",
    ),
    "negative strides": (b"q\x08K\x03K\x01\x86", b"q\x08K\x03J\xff\xff\xff\xff\x86"),
    "another count": (b"cpuq\x06K\x06", b"cpuq\x06K\x07"),
    "a key that is a path": (b"X\x01\0\0\x000q", b"X\x01\0\0\0.q"),
}  # fmt: skip
EDITS = [
    lambda name, content: None if name == "data/0" else content,
    lambda name, content: content[:-4] if name == "data/0" else content,
    lambda name, content: b"big" if name == "byteorder" else content,
]


class TestTorch(ReaderCase):
    name = "torch"
    suffix = ".pt"
    forged = [
        *((claiming(*claim), "") for claim in CLAIMS.values()),
        *((rewritten(edit), "") for edit in EDITS),
    ]

    def make(self, path: Path, state: dict[str, Any]) -> None:
        torch.save({name: torch.from_numpy(array.copy()) for name, array in state.items()}, path)

    def named(self, path: Path, name: str) -> None:
        torch.save({name: torch.ones(2)}, path)


def test_a_rewritten_file_is_read_and_a_cut_stream_is_not(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    path.write_bytes(rewritten(lambda name, content: content))
    assert found(path)["a"].shape == (2, 3)
    torch.save({"a": torch.arange(100.0)}, path, **WRITTEN["stream"])
    whole = path.read_bytes()
    for size in range(0, len(whole), 37):
        path.write_bytes(whole[:size])
        with pytest.raises(FileFormatError):
            open_state(path)


def found(path: Path) -> dict[str, Any]:
    with open_state(path) as reader:
        assert reader.format == "torch"
        for name in reader.entries:
            reader._verify_array(name)
        return dict(reader)


@pytest.mark.parametrize("how", WRITTEN)
def test_every_array_that_pytorch_writes(how: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    torch.save(STATE, path, **WRITTEN[how])
    arrays = found(path)
    assert list(arrays) == list(STATE)
    for name, tensor in STATE.items():
        tensor = tensor.detach()
        want = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        assert arrays[name].dtype == want.numpy().dtype
        np.testing.assert_array_equal(arrays[name], want.numpy())
        arrays[name][...] = 0


@pytest.mark.parametrize(("name", "above"), [("training.pt", "model/"), ("before_1_6.pt", "")])
def test_files_kept_from_pytorch_2_13(name: str, above: str) -> None:
    with open_state(FILES / name) as reader:
        arrays = {key: reader.read(f"{above}{key}") for key in ("0.weight", "0.bias", "1.weight")}
    base = np.arange(12, dtype="f4").reshape(3, 4)
    np.testing.assert_array_equal(arrays["0.weight"], base.T)
    np.testing.assert_array_equal(arrays["0.bias"], base[1])
    np.testing.assert_array_equal(arrays["1.weight"], base[:2, :2] / 8)


def test_the_entries_of_a_training(tmp_path: Path) -> None:
    weights = torch.nn.Linear(3, 2).state_dict()
    slots = {"step": torch.tensor(1.0), "exp_avg": torch.rand(2)}
    rule = {"state": {1: slots}, "param_groups": [{"lr": 0.1, "params": [0, 1], "betas": (1, 2)}]}
    torch.save({"model": weights, "optimizer": rule, "args": {"lr": 0.1}}, tmp_path / "m.pt")
    arrays = found(tmp_path / "m.pt")
    slots = [f"optimizer/state/1/{slot}" for slot in slots]
    assert list(arrays) == ["model/weight", "model/bias", *slots]
    np.testing.assert_array_equal(arrays[slots[1]], rule["state"][1]["exp_avg"].numpy())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.nn.Linear(2, 2), r"torch\.nn\.modules\.linear\.Linear.*module\.state_dict"),
        ({"a": torch.ones(3).to_sparse()}, "_rebuild_sparse_tensor"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, "ComplexFloatStorage"),
        ({"a": torch.ones(2).to(torch.float8_e4m3fn)}, "float8_e4m3fn"),
        ({"a": print}, "print"),
        ({"a": torch.ones(2), "b": Reduced(open, "made", "w")}, "open"),
        (torch.ones(2), "a tensor alone"),
        ([1, 2], "a list"),
        ({"epoch": 3}, "a dict"),
    ],
)
def test_what_is_no_state_dict_is_refused_by_name(value, message, tmp_path, monkeypatch):
    """And nothing runs."""
    monkeypatch.chdir(tmp_path)
    for how in WRITTEN.values():
        torch.save(value, tmp_path / "m.pt", **how)
        with pytest.raises(
            UnsafeFileError if message == "open" else FileFormatError, match=message
        ):
            open_state(tmp_path / "m.pt")
    assert names_in(tmp_path) == ["m.pt"]
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "m.pt")
    with pytest.raises(FileFormatError, match="state_dict"):
        open_state(tmp_path / "m.pt")


def test_a_packed_member_is_read_no_further_than_it_may_go(tmp_path: Path) -> None:
    long = bytes(8 << 20)
    raw = rewritten(lambda name, content: long if name == "byteorder" else content)
    with (
        zipfile.ZipFile(io.BytesIO(raw)) as old,
        zipfile.ZipFile(tmp_path / "packed.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for info in old.infolist():
            kind = None if info.filename.endswith("byteorder") else zipfile.ZIP_STORED
            new.writestr(info.filename, old.read(info), kind)
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match="low byte"):
            open_state(tmp_path / "packed.pt")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("how", ["zip", "stream"])
def test_two_tensors_of_one_name_and_views_that_are_marked_as_negated(how, tmp_path):
    path = tmp_path / "m.pt"
    for keys in ({"a": {"b": BASE}, "a/b": BASE + 1}, {1: BASE, "1": BASE + 1}):
        torch.save(keys, path, **WRITTEN[how])
        with pytest.raises(FileFormatError, match="two called"):
            open_state(path)
    view = torch.complex(BASE, BASE + 1).conj().imag
    assert view.is_neg()
    torch.save({"view": view, "base": BASE}, path, **WRITTEN[how])
    arrays = found(path)
    np.testing.assert_array_equal(arrays["view"], -1 - BASE.numpy())
    np.testing.assert_array_equal(arrays["base"], BASE.numpy())


def test_dicts_that_share_each_other_are_not_walked_for_ever(tmp_path: Path) -> None:
    shared: Any = {"w": torch.ones(1)}
    for _ in range(20):
        shared = {"a": shared, "b": shared}
    torch.save(shared, tmp_path / "m.pt")
    with pytest.raises(FileFormatError, match="at most"):
        open_state(tmp_path / "m.pt")


def test_numpys_pickles_still_refer_to_nothing(tmp_path: Path) -> None:
    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return "outside" if isinstance(value, set) else None

    with (tmp_path / "m.pickle").open("wb") as stream:
        Pickler(stream, 2).dump({"a": {1}})
    with pytest.raises(UnsafeFileError, match=r"b'Q'"):
        open_state(tmp_path / "m.pickle")
