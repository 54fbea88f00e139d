"""Files made by hand that ask for more than they hold: own errors only, within the bounds."""

import time

import pytest

from tests.mutation import hostile, mutate
from tests.mutation.kinds import KINDS
from tests.mutation.watching import Peak


def check(kind, path):
    """Read the file; AssertionError where it takes too long or too much memory."""
    size, peak = path.stat().st_size, Peak()
    peak.start()
    start = time.process_time()
    found = mutate.outcome(KINDS[kind], path)
    assert time.process_time() - start < mutate.SECONDS
    assert peak.bytes() < 10 * size + KINDS[kind].floor
    return found


VIEWS = [
    (filled, size, op)
    for op in ("Neg", "Reshape", "ReduceSum", "NonZero", "Mod", "Dropout", "Cast", "to x")
    for filled, size in (("ConstantOfShape", 1 << 32), ("of the batch", 1 << 32))
]


@pytest.mark.parametrize(("filled", "size", "op"), VIEWS, ids=str)
def test_views_of_constants_are_not_made(filled, size, op, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(hostile.partial_view(size, filled, op).SerializeToString())
    # Shapes alone are made of these; all else is refused, by what it would take if that is known.
    assert check("onnx", path) in ("FileFormatError", "UnsafeFileError")


@pytest.mark.parametrize("what", ["ints", "default", "typed", "formals"])
def test_functions_pay_for_their_contents_at_each_use(what, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(hostile.used(what, 400).SerializeToString())
    assert check("onnx", path) == "UnsafeFileError"


def test_nonsense_is_told_by_the_reader(tmp_path):
    for k, (name, made) in enumerate(hostile.onnx_nonsense()):
        path = tmp_path / f"{k}.onnx"
        path.write_bytes(made.SerializeToString())
        found = check("onnx", path)
        if name in ("an axis twice", "CastLike of one", "ConstantOfShape of bytes"):
            assert found == "FileFormatError"


@pytest.mark.parametrize(
    "maker",
    [pytest.param(hostile.ggufs, marks=pytest.mark.full), hostile.indexes],
    ids=["gguf", "index"],
)
def test_published_models_that_claim_much(maker, tmp_path):
    for name, raw in maker():
        path = tmp_path / ("m.gguf" if raw.startswith(b"GGUF") else "m.safetensors.index.json")
        path.write_bytes(raw)
        found = check("checkpoint", path)
        harmless = ("small ones", "empty arrays", "a number of parts")
        assert found != "read" or any(each in name for each in harmless), name


@pytest.mark.slow
def test_all(tmp_path):
    count = 0
    for _, kind, suffix, raw in hostile.files():
        path = tmp_path / f"m{suffix}"
        path.write_bytes(raw)
        check(kind, path)
        count += 1
    assert count >= 500
