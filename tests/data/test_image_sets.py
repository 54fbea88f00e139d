"""Sets of images: CIFAR, MNIST, and those that come with the package."""

import gzip
import hashlib
import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import singanet.data
from singanet.data import cifar10, cifar100, digits, load, mnist, scenes
from singanet.errors import ArgumentError, DataError
from tests.kit.files import Reduced

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
        fine, coarse, data = np.arange(count), COARSE[:count], PIXELS[name]
        if binary:
            columns = [coarse.astype(np.uint8), fine.astype(np.uint8), data]
            files[name + ".bin"] = np.column_stack(columns).tobytes()
        else:
            labels = {"fine_labels": fine.tolist(), "coarse_labels": coarse.tolist()}
            files[name] = pickle.dumps({**labels, "data": data}, 2)
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
    fine, coarse = cifar100(tmp_path), cifar100(tmp_path, labels="coarse")
    assert (fine.num_classes, coarse.num_classes) == (100, 20)
    assert fine.y_train.tolist() == list(range(100))
    assert coarse.y_train.tolist() == COARSE.tolist()
    np.testing.assert_array_equal(fine.x_test, images("test"))
    assert load(tmp_path).num_classes == 100
    with pytest.raises(ArgumentError, match="'fine' or 'coarse'"):
        cifar100(tmp_path, labels="superfine")
    if binary:
        changed = bytes([20]) + hundred(True)["train.bin"][1:]
        (tmp_path / "train.bin").write_bytes(changed)
        assert cifar100(tmp_path).num_classes == 100
        with pytest.raises(DataError, match=r"train\.bin.*0 to 19.*20 at image 0"):
            cifar100(tmp_path, labels="coarse")


@pytest.mark.parametrize("use", [cifar10, cifar100])
def test_a_missing_set_says_where_to_get_it(tmp_path, use):
    for where in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError, match=r"www\.cs\.toronto\.edu/~kriz/cifar\.html"):
            use(where)


def test_a_missing_and_a_short_file_are_named(tmp_path):
    files, folder = ten(False), tmp_path / "folder"
    del files["data_batch_4"]
    with pytest.raises(DataError, match="'data_batch_4'"):
        cifar10(write(folder, files))
    with pytest.raises(DataError, match=r"my\.tar\.gz.*'data_batch_4'"):
        cifar10(tar(tmp_path / "my.tar.gz", files))
    name, files = "data_batch_2.bin", ten(True)
    with pytest.raises(DataError, match=r"data_batch_2\.bin', byte 3073: .*3072 bytes at the end"):
        cifar10(write(tmp_path, files | {name: files[name][:-1]}))
    with pytest.raises(DataError, match=r"data_batch_2\.bin', byte 0"):
        cifar10(write(tmp_path, files | {name: b""}))


def test_what_is_no_archive(tmp_path):
    path = tmp_path / "my.tar.gz"
    path.write_bytes(b"\x89PNG is not it")
    with pytest.raises(DataError, match=r"my\.tar\.gz.*a PNG image"):
        cifar10(path)
    with pytest.raises(DataError, match="plain.tar"):
        cifar10(tar(tmp_path / "plain.tar", ten(True), "w"))
    with tarfile.open(path, "w:gz") as archive:  # of links, which are not followed
        for name in TEN:
            info = tarfile.TarInfo(name + ".bin")
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
    with pytest.raises(DataError, match="none of that name"):
        cifar10(path)


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


TWO = {"labels": [1, 2], "data": PIXELS["test"]}


@pytest.mark.parametrize("content", [
    {}, {"data": PIXELS["test"]}, {"labels": [1, 2]}, TWO | {"labels": [1, 2, 3]},
    TWO | {"labels": (1, 2)}, TWO | {"labels": [1, -2]}, TWO | {"labels": [1, "2"]},
    TWO | {"data": PIXELS["test"][:, :-1]}, TWO | {"data": PIXELS["test"].astype(np.int16)},
    TWO | {"data": PIXELS["test"][None]}, TWO | {"data": 5}, Reduced(exec, "raise SystemExit"),
])  # fmt: skip
def test_pickles_with_other_entries(tmp_path, content):
    files = {**ten(False), "data_batch_5": pickle.dumps(content, 2)}
    told = "data_batch_5.*exec" if isinstance(content, Reduced) else "data_batch_5"
    with pytest.raises(DataError, match=told):
        cifar10(write(tmp_path, files))


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
    whole = tar(folder / "a.tar", {"data_batch_1.bin": b"abc"}, "w").read_bytes()
    content = bytearray(whole[:1024])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 600))] = data.draw(st.integers(0, 255))
    path = folder / "mutated.tar.gz"
    path.write_bytes(gzip.compress(bytes(content)))
    with pytest.raises(DataError, match=r"mutated\.tar\.gz"):
        cifar10(path)


NAMES = (
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)  # fmt: skip
MNIST_IMAGES = np.arange(12 * 28 * 28).astype("u1").reshape(12, 28, 28)
MNIST_LABELS = np.array([5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 6], "u1")
FOUR = (MNIST_IMAGES, MNIST_LABELS, MNIST_IMAGES[:3], MNIST_LABELS[:3])


def idx(array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def write_mnist(folder, arrays=FOUR, missing=None, form=""):
    for name, array in zip(NAMES, arrays, strict=True):
        content = gzip.compress(idx(array)) if form == ".gz" else idx(array)
        if name != missing:
            name = name.replace("-idx", ".idx") if form == "dotted" else name
            (folder / (name + form * (form == ".gz"))).write_bytes(content)
    return folder


@pytest.mark.parametrize("form", ["", "dotted", ".gz"])
def test_four_files_become_a_data_set(tmp_path, form):
    data = mnist(write_mnist(tmp_path, form=form), checksums=False)
    assert data.x_train.shape == (12, 1, 28, 28)
    np.testing.assert_allclose(data.x_train[3, 0], MNIST_IMAGES[3] / 255, rtol=1e-6)
    assert data.y_train.tolist() == MNIST_LABELS.tolist()
    assert data.y_test.tolist() == [5, 0, 4]
    assert data.num_classes == 10
    if form == ".gz":  # packed files are compared with the published checksums
        for use in (mnist, load):
            with pytest.raises(DataError, match=r"idx3-ubyte\.gz.*f68b3c2dcbeaaa9fbdd348bbdeb9487"):
                use(tmp_path)
        return
    assert load(tmp_path).num_classes == 10
    path = next(tmp_path.glob("t10k-images*"))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"t10k-images.*byte 1000.*1368 bytes short"):
        mnist(tmp_path)


@pytest.mark.parametrize(("arrays", "missing", "words"), [
    *((FOUR, name, f"'{name}'.*yann.lecun.com") for name in NAMES),
    ((MNIST_LABELS, MNIST_IMAGES) * 2, "", "train-images.*3 axes.*its own name"),
    ((MNIST_IMAGES, MNIST_LABELS[:11], MNIST_IMAGES, MNIST_LABELS), "", "12 labels.*11"),
])  # fmt: skip
def test_files_of_mnist_that_do_not_match(tmp_path, arrays, missing, words):
    with pytest.raises(DataError, match=words):
        mnist(write_mnist(tmp_path, arrays, missing))
    with pytest.raises(DataError, match="no such folder"):
        mnist(tmp_path / "none")


def test_digits_equal_what_is_published():
    data = digits()
    assert (data.x_train.shape, data.x_test.shape) == ((1442, 1, 8, 8), (355, 1, 8, 8))
    assert data.num_classes == 10
    values = np.concatenate([data.x_train, data.x_test])
    assert {*np.unique(values * 16)} == {*range(17)}
    counts = np.bincount(np.concatenate([data.y_train, data.y_test]))
    # Counts of the test set in UCI's description; a fifth of each class is for tests.
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    np.testing.assert_array_equal(np.bincount(data.y_test), counts // 5)
    # The first line of its file.
    first = [
        [0, 0, 5, 13, 9, 1, 0, 0], [0, 0, 13, 15, 10, 15, 5, 0], [0, 3, 15, 2, 0, 11, 8, 0],
        [0, 4, 12, 0, 0, 8, 8, 0], [0, 5, 8, 0, 0, 9, 8, 0], [0, 4, 11, 0, 1, 12, 7, 0],
        [0, 2, 14, 5, 10, 12, 0, 0], [0, 0, 6, 13, 10, 0, 0, 0],
    ]  # fmt: skip
    assert (data.x_train[0, 0] * 16).tolist() == first
    assert data.y_train[0] == 0
    files = Path(singanet.data.__file__).parent / "files"
    assert (files / "digits.npz").stat().st_size < 100_000
    notice = (files / "NOTICE.md").read_text("utf-8")
    assert "Alpaydin" in notice
    assert "CC BY 4.0" in notice


def test_scenes_have_a_class_a_pixel():
    data = load("scenes")
    assert data.name == "scenes"
    assert data.x_train.shape == (961, 1, 32, 32)
    assert data.y_train.shape == (961, 32, 32)
    assert (data.x_test.shape, data.y_test.shape) == ((236, 1, 32, 32), (236, 32, 32))
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int32)
    assert (data.num_classes, data.y_train.min(), data.y_train.max()) == (11, 0, 10)
    assert data.x_train.min() >= 0
    assert data.x_train.max() == 1


def test_what_is_marked_is_a_digit_of_its_class():
    # Other scenes than the usual ones, whose sum is told below.
    data, source = scenes(seed=3), digits()
    x, y = data.x_test[:8, 0], data.y_test[:8]
    for image, classes in zip(x, y, strict=True):
        # Noise stays under 0.5; a digit of one class has marks within 8 by 8 pixels.
        assert (classes[image > 0.5] > 0).all()
        for label in set(classes[classes > 0].tolist()):
            rows, columns = np.nonzero(classes == label)
            if np.ptp(rows) >= 8 or np.ptp(columns) >= 8:
                continue  # twice in the scene
            marked = np.where(classes == label, image, 0)
            stamps = source.x_test[source.y_test == label - 1, 0]
            corners = np.lib.stride_tricks.sliding_window_view(marked, (8, 8)).reshape(-1, 1, 64)
            bright = np.where(stamps > 0.5, stamps, 0).reshape(1, -1, 64)
            near = abs(np.where(corners > 0.5, corners, 0) - bright).max(axis=2).min()
            assert near < 1e-6


@pytest.mark.parametrize("binary", [True, False])
def test_cifar10_from_a_folder_the_one_above_and_an_archive(tmp_path, binary):
    folder = f"cifar-10-batches-{'bin' if binary else 'py'}"
    write(tmp_path / "above" / folder, ten(binary))
    check_ten(cifar10(tmp_path / "above" / folder))
    check_ten(load(tmp_path / "above" / folder))
    check_ten(cifar10(tmp_path / "above"))
    check_ten(load(str(tmp_path / "above")))
    files = {f"cifar-10-batches/{name}": content for name, content in ten(binary).items()}
    path = tar(tmp_path / "my.tar.gz", {"cifar-10-batches/readme.html": b"hello", **files})
    check_ten(cifar10(path))


@pytest.mark.parametrize(("make", "factor", "digest"), [
    (digits, 16, "eb16a5b9fcc31197ecd8be8456b687084ffc10eb4cc2efbd406de3cc793713c8"),
    (scenes, None, "cf4c5ac2b8d84abff4447db160df6a963ac424ea5065c545a643699676a580d0"),
])  # fmt: skip
def test_sets_never_change(make, factor, digest):
    data, content = make(), hashlib.sha256()
    for array in (data.x_train, data.y_train, data.x_test, data.y_test):
        whole = factor and (array * factor if array.dtype == np.float32 else array)
        content.update((whole.astype(np.uint8) if factor else array).tobytes())
    assert content.hexdigest() == digest
