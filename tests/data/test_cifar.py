import io
import pickle
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data import cifar10, cifar100, load
from singanet.errors import ArgumentError, DataError

RNG = np.random.default_rng(0)
TEN = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]
PIXELS = {name: RNG.integers(0, 256, (2, 3072), dtype=np.uint8) for name in [*TEN, "test"]}
PIXELS["train"] = RNG.integers(0, 256, (100, 3072), dtype=np.uint8)
COARSE = np.arange(100) % 20


def ten(binary):
    """The six files of a CIFAR-10 of two images a file; batch k has the labels 2k-2 and 2k-1."""
    files = {}
    for k, name in enumerate(TEN):
        labels = [0, 9] if name == "test_batch" else [2 * k, 2 * k + 1]
        if binary:
            table = np.column_stack([np.array(labels, np.uint8), PIXELS[name]])
            files[name + ".bin"] = table.tobytes()
        else:
            content = {b"batch_label": b"", b"labels": labels, b"data": PIXELS[name]}
            files[name] = pickle.dumps(content, 2)
    return files


def hundred(binary):
    files = {}
    for name, count in (("train", 100), ("test", 2)):
        fine, coarse = np.arange(count), COARSE[:count]
        if binary:
            columns = [coarse.astype(np.uint8), fine.astype(np.uint8), PIXELS[name]]
            files[name + ".bin"] = np.column_stack(columns).tobytes()
        else:
            content = {
                "fine_labels": fine.tolist(),
                "coarse_labels": coarse.tolist(),
                "data": PIXELS[name],
            }
            files[name] = pickle.dumps(content, 2)
    return files


def write(folder, files):
    folder.mkdir(exist_ok=True, parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def tar(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def images(name):
    return PIXELS[name].reshape(-1, 3, 32, 32).astype(np.float32) / np.float32(255)


def check_ten(data):
    assert data.num_classes == 10
    assert data.y_train.tolist() == list(range(10))
    assert data.y_test.tolist() == [0, 9]
    np.testing.assert_array_equal(data.x_train, np.concatenate([images(n) for n in TEN[:5]]))
    np.testing.assert_array_equal(data.x_test, images("test_batch"))


@pytest.mark.parametrize("binary", [True, False])
def test_cifar10_from_a_folder(tmp_path, binary):
    check_ten(cifar10(write(tmp_path, ten(binary))))
    check_ten(load(tmp_path))


@pytest.mark.parametrize(("inner", "binary"), [("batches-bin", True), ("batches-py", False)])
def test_cifar10_from_the_folder_above(tmp_path, inner, binary):
    write(tmp_path / f"cifar-10-{inner}", ten(binary))
    check_ten(cifar10(tmp_path))
    check_ten(load(str(tmp_path)))


@pytest.mark.parametrize("binary", [True, False])
def test_cifar10_from_an_archive(tmp_path, binary):
    files = {f"cifar-10-batches/{name}": content for name, content in ten(binary).items()}
    path = tar(tmp_path / "my.tar.gz", {"cifar-10-batches/readme.html": b"hello", **files})
    check_ten(cifar10(path))


@pytest.mark.parametrize("form", ["binary", "python"])
def test_a_published_archive_is_compared_with_its_checksum(tmp_path, form):
    path = tar(tmp_path / f"cifar-10-{form}.tar.gz", ten(form == "binary"))
    for use, where in ((cifar10, path), (load, path), (cifar10, tmp_path), (load, tmp_path)):
        with pytest.raises(DataError, match=r"MD5 c[0-9a-f]{31}, as published"):
            use(where)
    check_ten(cifar10(path, checksums=False))
    check_ten(cifar10(tmp_path, checksums=False))


@pytest.mark.parametrize("binary", [True, False])
def test_cifar100_fine_and_coarse(tmp_path, binary):
    write(tmp_path, hundred(binary))
    fine = cifar100(tmp_path)
    assert fine.num_classes == 100
    assert fine.y_train.tolist() == list(range(100))
    np.testing.assert_array_equal(fine.x_test, images("test"))
    coarse = cifar100(tmp_path, labels="coarse")
    assert coarse.num_classes == 20
    assert coarse.y_train.tolist() == COARSE.tolist()
    assert load(tmp_path).num_classes == 100


def test_labels_of_cifar100_are_named():
    with pytest.raises(ArgumentError, match="'fine' or 'coarse'"):
        cifar100("anywhere", labels="superfine")


@pytest.mark.parametrize("use", [cifar10, cifar100])
def test_a_missing_set_says_where_to_get_it(tmp_path, use):
    for where in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError, match=r"www\.cs\.toronto\.edu/~kriz/cifar\.html"):
            use(where)


def test_a_missing_file_is_named(tmp_path):
    files = ten(False)
    del files["data_batch_4"]
    with pytest.raises(DataError, match="'data_batch_4'"):
        cifar10(write(tmp_path / "folder", files))
    with pytest.raises(DataError, match=r"my\.tar\.gz.*'data_batch_4'"):
        cifar10(tar(tmp_path / "my.tar.gz", files))


def test_a_short_binary_file_names_file_and_byte(tmp_path):
    files = ten(True)
    files["data_batch_2.bin"] = files["data_batch_2.bin"][:-1]
    with pytest.raises(DataError, match=r"data_batch_2\.bin', byte 3073: .*3072 bytes at the end"):
        cifar10(write(tmp_path, files))
    files["data_batch_2.bin"] = b""
    with pytest.raises(DataError, match=r"data_batch_2\.bin', byte 0"):
        cifar10(write(tmp_path, files))


@pytest.mark.parametrize("binary", [True, False])
def test_labels_out_of_range_name_file_and_image(tmp_path, binary):
    files = ten(binary)
    if binary:
        changed = bytearray(files["data_batch_3.bin"])
        changed[3073] = 10
        files["data_batch_3.bin"] = bytes(changed)
    else:
        content = {b"labels": [4, 10], b"data": PIXELS["data_batch_3"]}
        files["data_batch_3"] = pickle.dumps(content, 2)
    with pytest.raises(DataError, match=r"data_batch_3.*0 to 9.*10 at image 1"):
        cifar10(write(tmp_path, files))


def test_coarse_labels_end_at_19(tmp_path):
    files = hundred(True)
    files["train.bin"] = bytes([20]) + files["train.bin"][1:]
    assert cifar100(write(tmp_path, files)).num_classes == 100
    with pytest.raises(DataError, match=r"train\.bin.*0 to 19.*20 at image 0"):
        cifar100(tmp_path, labels="coarse")


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"data": PIXELS["test"]},
        {"labels": [1, 2]},
        {"labels": [1, 2, 3], "data": PIXELS["test"]},
        {"labels": (1, 2), "data": PIXELS["test"]},
        {"labels": [1, -2], "data": PIXELS["test"]},
        {"labels": [1, "2"], "data": PIXELS["test"]},
        {"labels": [1, 2], "data": PIXELS["test"][:, :-1]},
        {"labels": [1, 2], "data": PIXELS["test"].astype(np.int16)},
        {"labels": [1, 2], "data": PIXELS["test"][None]},
        {"labels": [1, 2], "data": 5},
    ],
)
def test_pickles_with_other_entries(tmp_path, content):
    files = {**ten(False), "data_batch_5": pickle.dumps(content, 2)}
    with pytest.raises(DataError, match="data_batch_5"):
        cifar10(write(tmp_path, files))


class Runs:
    def __reduce__(self):
        return (exec, ("raise SystemExit",))


def test_a_pickle_that_runs_something_is_refused(tmp_path):
    files = {**ten(False), "test_batch": pickle.dumps(Runs(), 2)}
    with pytest.raises(DataError, match=r"test_batch.*exec"):
        cifar10(write(tmp_path, files))


def test_what_is_no_archive(tmp_path):
    path = tmp_path / "my.tar.gz"
    path.write_bytes(b"\x89PNG is not it")
    with pytest.raises(DataError, match=r"my\.tar\.gz.*a PNG image"):
        cifar10(path)
    with pytest.raises(DataError, match="plain.tar"):
        cifar10(tar(tmp_path / "plain.tar", ten(True), "w"))


def test_links_and_folders_in_an_archive_are_not_followed(tmp_path):
    path = tmp_path / "my.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in TEN:
            info = tarfile.TarInfo(name + ".bin")
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
    with pytest.raises(DataError, match="none of that name"):
        cifar10(path)


@pytest.mark.parametrize("what", ["a note", "a name", "members", "sizes"])
def test_archives_that_unpack_to_far_more(tmp_path, what):
    path = tmp_path / "cifar.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for k in range(200 if what == "members" else 1):
            info = tarfile.TarInfo(f"m{k}" * (100_000 if what == "a name" else 1))
            info.pax_headers = {"comment": "a" * (1 << 20)} if what == "a note" else {}
            info.size = 1 << 40 if what == "sizes" else 0
            # The header alone: newer Pythons add no file without its contents.
            header = info.tobuf(archive.format)
            archive.fileobj.write(header)
            archive.offset += len(header)
    told = {"members": "at most", "sizes": "at most"}.get(what, "a note of")
    with pytest.raises(DataError, match=told):
        cifar10(path, checksums=False)


def test_an_archive_cut_anywhere_is_refused(tmp_path):
    whole = tar(tmp_path / "my.tar.gz", {n: c[:0] for n, c in ten(True).items()}).read_bytes()
    path = tmp_path / "cut.tar.gz"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError):
            cifar10(path)


@given(st.data())
def test_mutated_archives_are_refused_by_name(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("mutated")
    content = bytearray(
        tar(folder / "a.tar", {"data_batch_1.bin": b"abc"}, "w").read_bytes()[:1024]
    )
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 600))] = data.draw(st.integers(0, 255))
    import gzip

    path = folder / "mutated.tar.gz"
    path.write_bytes(gzip.compress(bytes(content)))
    with pytest.raises(DataError, match=r"mutated\.tar\.gz"):
        cifar10(path)
