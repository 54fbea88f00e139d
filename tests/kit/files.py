"""Files made by hand, by the description of their format, and checks of how files are read."""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib

import numpy as np
import pytest

from singanet.checkpoint import open_state, write_state
from singanet.checkpoint.gguf_blocks import BLOCKS
from singanet.errors import FileFormatError


def read_state(path, format=None, **options):
    """All arrays of the file at ``path``."""
    with open_state(path, format, **options) as reader:
        return dict(reader)


def expect_same_state(read, written):
    """Check for equal names in order, types, shapes and bits, and that arrays are writable."""
    assert list(read) == list(written)
    for name, array in written.items():
        array = np.asarray(array)
        array = array.astype(array.dtype.newbyteorder("<"))
        assert read[name].dtype == array.dtype, name
        assert read[name].shape == array.shape, name
        assert read[name].tobytes() == array.tobytes(), name
        assert read[name].flags.writeable, name
        assert read[name].flags.c_contiguous, name


def expect_refused(call, message, error=FileFormatError):
    """Check that ``call`` raises ``error`` with ``message``; returns the error's text."""
    with pytest.raises(error) as caught:
        pytest.fail(f"not refused: {message}; got {call()!r}"[:500])
    text = str(caught.value)
    assert re.search(message, text), (message, text)
    assert len(text) < 1500, text
    return text


def flipped(raw, at, mask=1):
    """The bytes ``raw`` with the bits ``mask`` of one byte changed."""
    return raw[:at] + bytes([raw[at] ^ mask]) + raw[at + 1 :]


def bytes_of(net):
    """The bytes of all parameters of a net, by name."""
    return {param.name: param.value.tobytes() for param in net.params()}


def checksum_by_hand(data):
    """The checksum of ``data``: its CRC-32 and the exclusive-or of its words of eight bytes."""
    padded = data + b"\0" * (-len(data) % 8)
    words = 0
    for start in range(0, len(padded), 8):
        words ^= int.from_bytes(padded[start : start + 8], "little")
    return zlib.crc32(data).to_bytes(4, "big") + words.to_bytes(8, "big")


def names_in(folder):
    """The names of what lies in a folder, sorted."""
    return sorted(each.name for each in folder.iterdir())


# -- texts in files of arrays ---------------------------------------------------------------------


def rewrite_text(path, change, key="model"):
    """Change the description in a ``.singanet`` file, which gets the checksums of the new one.

    ``change`` gets the description and all arrays, and may return another description or its text.
    """
    state = read_state(path)
    about = json.loads(bytes(state[key]))
    about = change(about, state) or about
    text = about if isinstance(about, str) else json.dumps(about)
    state[key] = np.frombuffer(text.encode(), np.uint8)
    write_state(path, state, "safetensors")


# -- safetensors ----------------------------------------------------------------------------------


def safetensors_entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    """A line of the table."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def safetensors_file(table, data=bytes(8)):
    """A file of ``table``, an object or its text."""
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data


# -- npz ------------------------------------------------------------------------------------------


def npy(array):
    """The bytes of a ``.npy`` file."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()


def zip_file(*members, method=zipfile.ZIP_STORED):
    """An archive of ``members``: names and bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as packed:
        for name, content in members:
            packed.writestr(name, content)
    return stream.getvalue()


def rewrite_zip(source, target, change, method=zipfile.ZIP_STORED):
    """Write the members of an archive anew as ``change(name, bytes)`` says; None leaves one out."""
    with zipfile.ZipFile(source) as old:
        members = [(name, change(name, old.read(name))) for name in old.namelist()]
    members = [member for member in members if member[1] is not None]
    target.write_bytes(zip_file(*members, method=method))
    return target


# -- pickles --------------------------------------------------------------------------------------


class Reduced:
    """Pickles as a call of ``maker``, or as an array whose state is what the maker says."""

    def __init__(self, maker, *args, state=None):
        self.result = (maker, args) if state is None else (maker, args, state)

    def __reduce__(self):
        return self.result


def forged_array(shape):
    """Pickles as an array of four numbers that claims ``shape``."""
    maker, args, (version, _, *rest) = np.ones(4, "f4").__reduce__()
    return Reduced(maker, *args, state=(version, shape, *rest))


def python_2_pickle(arrays, version=None):
    """The pickle of cPickle in Python 2, protocol 0, with strings as their repr."""
    out = b"(dp1\n"
    if version is not None:
        out += b"S'SINGA_VERSION'\np2\nI%d\ns" % version
    for name, array in arrays.items():
        raw = repr(array.tobytes())[1:].encode()
        shape = b"".join(b"I%d\n" % axis for axis in array.shape)
        out += b"S'%s'\ncnumpy.core.multiarray\n_reconstruct\np3\n" % name.encode()
        out += b"(cnumpy\nndarray\np4\n(I0\ntS'b'\ntRp5\n(I1\n(" + shape + b"t"
        out += b"cnumpy\ndtype\np6\n(S'f4'\nI0\nI1\ntRp7\n(I3\nS'<'\nNNNI-1\nI-1\nI0\ntb"
        out += b"I00\nS" + raw + b"\np8\ntbs"
    return out + b"."


# -- SINGA's snapshots ----------------------------------------------------------------------------


def varint(value):
    """A whole number as protobuf writes it."""
    value = int(value) & (1 << 64) - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def snapshot_value(array, marks=(0,), packed=True, shape=None):
    """A TensorProto of ``array`` in storage order; ``marks`` are the values of field 3."""
    number, field, wire = {"f4": (0, 4, 5), "f8": (4, 5, 1), "i4": (2, 6, 0)}[array.dtype.str[1:]]
    out = b"".join(b"\x08" + varint(axis) for axis in (array.shape if shape is None else shape))
    out += b"\x10" + varint(number)
    out += b"".join(b"\x18" + varint(mark) for mark in marks)
    if wire == 0:
        numbers = [varint(int(one)) for one in array.reshape(-1)]
    else:
        numbers = [one.tobytes() for one in array.reshape(-1)]
    if packed and numbers:
        data = b"".join(numbers)
        return out + varint(field << 3 | 2) + varint(len(data)) + data
    return out + b"".join(varint(field << 3 | wire) + one for one in numbers)


def snapshot_record(key, value):
    """A record of a name and a TensorProto."""
    raw = key.encode()
    return b"sg\1\0" + struct.pack("<Q", len(raw)) + raw + struct.pack("<Q", len(value)) + value


# -- GGUF -----------------------------------------------------------------------------------------


def gguf_text(word):
    """A text behind its length."""
    raw = word.encode() if isinstance(word, str) else word
    return struct.pack("<Q", len(raw)) + raw


def gguf_tensor(name="w", axes=(4,), code=0, offset=0):
    """A line of the table; the innermost of ``axes`` first."""
    return gguf_text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, code, offset)


def gguf_file(tensors=(), values=(), data=b"", version=3, count=None, align=32):
    """``values`` are keys with types and bytes; ``count`` replaces the number of tensors."""
    count = len(tensors) if count is None else count
    raw = b"GGUF" + struct.pack("<IQQ", version, count, len(values))
    raw += b"".join(gguf_text(key) + struct.pack("<I", code) + value for key, code, value in values)
    raw += b"".join(tensors)
    return raw + bytes(-len(raw) % align) + data


def gguf_of_all_types():
    """An array of every type, of random bytes, and a value of every type."""
    rng = np.random.default_rng(0)
    tensors, data = [], b""
    for block in BLOCKS.values():
        axes = (2 * block.elements, 3)
        tensors.append(gguf_tensor(f"a.{block.name}", axes, block.code, len(data)))
        data += rng.bytes(6 * block.nbytes)
        data += bytes(-len(data) % 32)
    sizes = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8]
    values = [(f"v.{code}", code, bytes(size)) for code, size in enumerate(sizes) if size]
    words = gguf_text("a") + gguf_text("") + gguf_text("ü")
    values += [("words", 9, struct.pack("<IQ", 8, 3) + words)]
    values += [("ids", 9, struct.pack("<IQ", 5, 4) + bytes(16)), ("name", 8, gguf_text("mine"))]
    values += [("lists", 9, struct.pack("<IQIQ", 9, 1, 7, 2) + b"\0\1")]
    return gguf_file(tensors, values, data)
