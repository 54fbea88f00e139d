"""Declare the used part of oneDNN's C interface: types, numbers, signatures (dnnl.h, 3.x)."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint, c_void_p
from enum import IntEnum
from typing import Any

from singanet.errors import BackendError

MAX_AXES = 12

Dims = c_int64 * MAX_AXES


class Version(ctypes.Structure):
    """``dnnl_version_t``."""

    _fields_ = [
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    ]


class ExecArg(ctypes.Structure):
    """``dnnl_exec_arg_t``: an argument and its memory."""

    _fields_ = [("arg", c_int), ("memory", c_void_p)]


class Arg(IntEnum):
    """Arguments of an execution (``DNNL_ARG_...``)."""

    SRC = 1
    SRC_1 = 2
    SRC_ITER = 2
    SRC_ITER_C = 3
    DST = 17
    DST_ITER = 18
    DST_ITER_C = 19
    WEIGHTS = 33
    WEIGHTS_ITER = 34
    BIAS = 41
    MEAN = 49
    VARIANCE = 50
    SCALE = 51
    SHIFT = 52
    WORKSPACE = 64
    SCRATCHPAD = 80
    SCALE_OF_SRC = 1 << 12 | 1
    SCALE_OF_SRC_1 = 1 << 12 | 2
    DIFF_SRC = 129
    DIFF_SRC_ITER = 130
    DIFF_SRC_ITER_C = 131
    DIFF_DST = 145
    DIFF_DST_ITER = 146
    DIFF_DST_ITER_C = 147
    DIFF_WEIGHTS = 161
    DIFF_WEIGHTS_ITER = 162
    DIFF_BIAS = 169
    DIFF_SCALE = 255
    DIFF_SHIFT = 256


MADE_FORWARD = frozenset({Arg.DST, Arg.DST_ITER, Arg.DST_ITER_C, Arg.WORKSPACE})
MADE_BACKWARD = frozenset(
    {Arg.DIFF_SRC, Arg.DIFF_SRC_ITER, Arg.DIFF_SRC_ITER_C, Arg.DIFF_WEIGHTS}
    | {Arg.DIFF_WEIGHTS_ITER, Arg.DIFF_BIAS, Arg.DIFF_SCALE, Arg.DIFF_SHIFT}
)
"""The arguments that a primitive writes, if it has them; one with a DIFF_DST runs backward."""


class Query(IntEnum):
    """Queries of a primitive descriptor for memory descriptors (``dnnl_query_..._md``)."""

    SRC = 129
    DIFF_SRC = 130
    WEIGHTS = 131
    DIFF_WEIGHTS = 132
    DST = 133
    DIFF_DST = 134
    WORKSPACE = 135
    SCRATCHPAD = 136


class Prop(IntEnum):
    """``dnnl_prop_kind_t``."""

    FORWARD_TRAINING = 64
    FORWARD_INFERENCE = 96
    BACKWARD = 128


class Algorithm(IntEnum):
    """``dnnl_alg_kind_t``."""

    CONVOLUTION_DIRECT = 0x1
    RELU = 0x20
    TANH = 0x21
    ELU = 0x22
    SQUARE_ROOT = 0x25
    SOFT_RELU = 0x27
    LOGISTIC = 0x29
    SWISH = 0x2C
    GELU_ERF = 0x31
    RELU_BY_DST = 0x100
    TANH_BY_DST = 0x101
    LOGISTIC_BY_DST = 0x104
    POOLING_MAX = 0x1FF
    POOLING_AVG_INCLUDE_PADDING = 0x2FF
    POOLING_AVG_EXCLUDE_PADDING = 0x3FF
    LRN_ACROSS_CHANNELS = 0xAFF
    BINARY_ADD = 0x1FFF0
    BINARY_MULTIPLY = 0x1FFF1
    BINARY_DIVIDE = 0x1FFF4
    BINARY_SUBTRACT = 0x1FFF5
    REDUCTION_SUM = 0x2FFF4
    SOFTMAX_ACCURATE = 0x30000


class Tag(IntEnum):
    """``dnnl_format_tag_t`` of weights in panels of 64 columns, with adjacent rows interleaved."""

    PANELS_OF_PAIRS = 384  # BA16a64b2a
    STACKED_PANELS_OF_FOURS = 532  # aCB16b64c4b


class RnnDirection(IntEnum):
    """``dnnl_rnn_direction_t``."""

    FORWARD = 1
    REVERSE = 2


class Norm(IntEnum):
    """``dnnl_normalization_flags_t``."""

    USE_GLOBAL_STATS = 1
    USE_SCALE = 2
    USE_SHIFT = 4
    FUSE_RELU = 8


F16 = 1
BF16 = 2
F32 = 3
S8 = 5
U8 = 6
FORMAT_ANY = 1
CPU = 1
DEFAULT_STREAM = 1
SCRATCHPAD_USER = 1
FPMATH_BF16 = 1
QUERY_IMPLEMENTATION = 8

_STATUS = {
    1: "out of memory",
    2: "invalid arguments",
    3: "unimplemented",
    4: "no further implementation",
    5: "runtime error",
    6: "not required",
}
NOT_OFFERED = (2, 3, 4)
"""The statuses of descriptor creation if oneDNN has no kernel for the case."""

_descriptor, _handle = c_void_p, c_void_p
_out = POINTER(c_void_p)
_dims = POINTER(c_int64)
_window = [_dims] * 4
_SIGNATURES: dict[str, list[Any]] = {
    "engine_create": [_out, c_int, c_size_t],
    "stream_create": [_out, c_void_p, c_uint],
    "memory_desc_create_with_strides": [_out, c_int, _dims, c_int, _dims],
    "memory_desc_create_with_tag": [_out, c_int, _dims, c_int, c_int],
    "memory_desc_destroy": [_descriptor],
    "memory_get_memory_desc": [_handle, _out],
    "memory_create": [_out, _descriptor, c_void_p, c_void_p],
    "memory_set_data_handle": [_handle, c_void_p],
    "memory_destroy": [_handle],
    "primitive_attr_clone": [_out, _handle],
    "primitive_attr_create": [_out],
    "primitive_attr_destroy": [_handle],
    "primitive_attr_set_fpmath_mode": [_handle, c_int],
    "primitive_attr_set_post_ops": [_handle, c_void_p],
    "primitive_attr_set_scales_mask": [_handle, c_int, c_int],
    "primitive_attr_set_scratchpad_mode": [_handle, c_int],
    "post_ops_append_eltwise": [_handle, c_int, c_float, c_float],
    "post_ops_append_sum": [_handle, c_float, c_int32, c_int],
    "post_ops_create": [_out],
    "post_ops_destroy": [_handle],
    "primitive_desc_query": [_descriptor, c_int, c_int, c_void_p],
    "primitive_desc_destroy": [_descriptor],
    "primitive_create": [_out, _descriptor],
    "primitive_destroy": [_handle],
}
# The arguments between the result and engine, and the attributes.
_D, _H = _descriptor, c_void_p
_PRIMITIVES: dict[str, list[Any]] = {
    "convolution_forward": [c_int, c_int, _D, _D, _D, _D, *_window],
    "convolution_backward_data": [c_int, _D, _D, _D, *_window, _H],
    "convolution_backward_weights": [c_int, _D, _D, _D, _D, *_window, _H],
    "pooling_forward": [c_int, c_int, _D, _D, _dims, *_window],
    "pooling_backward": [c_int, _D, _D, _dims, *_window, _H],
    "batch_normalization_forward": [c_int, _D, _D, c_float, c_uint],
    "batch_normalization_backward": [c_int, _D, _D, _D, c_float, c_uint, _H],
    "layer_normalization_forward": [c_int, _D, _D, _D, c_float, c_uint],
    "layer_normalization_backward": [c_int, _D, _D, _D, _D, c_float, c_uint, _H],
    "matmul": [_D, _D, _D, _D],
    "binary": [c_int, _D, _D, _D],
    "eltwise_forward": [c_int, c_int, _D, _D, c_float, c_float],
    "eltwise_backward": [c_int, _D, _D, _D, c_float, c_float, _H],
    "lrn_forward": [c_int, c_int, _D, _D, c_int64, c_float, c_float, c_float],
    "lrn_backward": [c_int, _D, _D, _D, c_int64, c_float, c_float, c_float, _H],
    "lstm_forward": [c_int, c_int, *[_D] * 11, c_uint],
    "lstm_backward": [c_int, c_int, *[_D] * 22, c_uint, _H],
    "lbr_gru_forward": [c_int, c_int, *[_D] * 7, c_uint],
    "lbr_gru_backward": [c_int, c_int, *[_D] * 14, c_uint, _H],
    "vanilla_rnn_forward": [c_int, c_int, c_int, *[_D] * 7, c_uint, c_float, c_float],
    "vanilla_rnn_backward": [c_int, c_int, c_int, *[_D] * 14, c_uint, c_float, c_float, _H],
    "reduction": [c_int, _D, _D, c_float, c_float],
    "softmax_forward": [c_int, c_int, _D, _D, c_int],
    "softmax_backward": [c_int, _D, _D, _D, c_int, _H],
}


def declare(c: Any) -> None:
    """Set the argument types of the library's functions; AttributeError if one is missing."""
    signatures = {name: list(types) for name, types in _SIGNATURES.items()}
    for name, types in _PRIMITIVES.items():
        signatures[f"{name}_primitive_desc_create"] = [_out, c_void_p, *types, c_void_p]
    signatures["reorder_primitive_desc_create"] = [_out, *[c_void_p] * 5]
    for name, types in signatures.items():
        function = getattr(c, f"dnnl_{name}")
        function.argtypes, function.restype = types, c_int
    for name, types, result in (
        ("get_effective_cpu_isa", [], c_int),
        ("memory_desc_get_size", [_descriptor], c_size_t),
        ("memory_desc_equal", [_descriptor, _descriptor], c_int),
        ("primitive_desc_query_md", [_descriptor, c_int, c_int], c_void_p),
    ):
        function = getattr(c, f"dnnl_{name}")
        function.argtypes, function.restype = types, result


def check(status: int, purpose: str) -> None:
    """Raise `BackendError` unless ``status`` is success."""
    if status:
        raise BackendError(
            "oneDNN",
            expected=f"{purpose} to succeed",
            received=_STATUS.get(status, f"status {status}"),
            advice="set SINGANET_OPS=numpy to do without oneDNN",
        )


def executing(c: Any, brief: bool) -> Any:
    """Return ``dnnl_primitive_execute`` for ctypes arguments; it raises on failure.

    ``brief`` does not release the interpreter's lock, which would take longer than a small kernel.
    """
    library = ctypes.PyDLL(c._name, handle=c._handle) if brief else c
    function = library["dnnl_primitive_execute"]
    # As restype it is called with the function's result, the fastest way to check.
    function.restype = failed
    return function


def failed(status: int) -> None:
    """Raise the error of a kernel's ``status``; None if that is success."""
    if status:
        check(status, "a kernel")


def dims(values: Any) -> Any:
    """Return a ``dnnl_dims_t`` of ``values``."""
    return Dims(*values)
