"""The onnx package's tests of single operators, run on nets that are built of their graphs.

Run as a program it prints the table of docs/onnx.md.
"""

import importlib
import pkgutil
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from unittest import mock

import numpy as np

from singanet.base.arguments import Budget
from singanet.errors import SingaNetError, UnsafeFileError
from singanet.onnx.load import build
from singanet.onnx.onnx_pb2 import ModelProto
from singanet.onnx.read import Port, graph_of

# In files weights are constants; in these tests all are inputs. Those at these places are weights.
CONSTANTS = {
    "AffineGrid": (1,), "BatchNormalization": (1, 2, 3, 4), "CastLike": (1,),
    "CausalConvWithState": (1, 2), "CenterCropPad": (1,), "Clip": (1, 2), "Compress": (1,),
    "ConstantOfShape": (0,), "Conv": (1, 2), "ConvInteger": (1, 2, 3),
    "ConvTranspose": (1, 2), "CumSum": (1,),
    "Dropout": (1, 2), "Expand": (1,), "Gather": (1,), "GatherND": (1,), "Gemm": (1, 2),
    "GroupNormalization": (1, 2), "GRU": (1, 2, 3, 5), "If": (0,), "InstanceNormalization": (1, 2),
    "LayerNormalization": (1, 2), "LSTM": (1, 2, 3, 5, 6, 7), "MatMulInteger": (1, 2, 3),
    "NegativeLogLikelihoodLoss": (2,),
    "OneHot": (1, 2), "Pad": (1, 2, 3), "PRelu": (1,), "QuantizeLinear": (1, 2), "Range": (0, 1, 2),
    "Reshape": (1,), "Resize": (1, 2, 3), "RMSNormalization": (1,), "RNN": (1, 2, 3, 5),
    "Scatter": (1,), "ScatterElements": (1,), "ScatterND": (1,), "Slice": (1, 2, 3, 4),
    "SoftmaxCrossEntropyLoss": (2,), "Split": (1,), "Squeeze": (1,), "Tile": (1,), "TopK": (1,),
    "Trilu": (1,), "Unsqueeze": (1,), "Upsample": (1,),
}  # fmt: skip

LEFT_OUT = {
    r"training_dropout(?!.*zero_ratio)": "other random numbers",
    r"(BF|bf)LOAT16|bf16": "bfloat16, which NumPy has not",
}
"""What cannot agree, by a part of the case's name."""

WRITTEN_OUT = "functions written out"


@dataclass
class Case:
    """One test: a model of one node, and what goes in and comes out."""

    name: str
    op: str
    model: object
    constant: set
    inputs: list
    outputs: list
    rtol: float
    atol: float


def pooled(
    padded, x_shape, kernel, strides, out_shape, kind,
    pads_required=None, pads=None, dilations=None, count_include_pad=0, p=1
):  # fmt: skip
    """The package's function of windows one by one, which costs most of all tests, for all at once.

    What is missing in a window is not a number, there and here; padding that counts is 0.
    """
    axes = range(2, padded.ndim)
    ends, out_of = (list(given or [0]) for given in (pads, pads_required))
    ends, out_of = (each * (2 * len(axes)) if len(each) == 1 else each for each in (ends, out_of))
    half, strides = len(axes), strides or [1] * len(axes)
    windows, y = padded, np.zeros((*x_shape[:2], *out_shape), padded.dtype)
    for k, axis in enumerate(axes):
        dilation = 1 if dilations is None else dilations[k]
        reach, size = (kernel[k] - 1) * dilation + 1, x_shape[axis]
        windows = windows.take(
            range(min(size + ends[k] + ends[half + k], padded.shape[axis])), axis
        )
        count = int((size + out_of[k] + out_of[half + k] - reach) / strides[k] + 1)
        more = [(0, 0)] * windows.ndim
        more[axis] = (0, max(0, (count - 1) * strides[k] + reach - windows.shape[axis]))
        windows = np.pad(windows, more, constant_values=np.nan)
        windows = np.lib.stride_tricks.sliding_window_view(windows, reach, axis)[..., ::dilation]
        windows = windows.take(np.arange(count) * strides[k], axis)
    lengths = lambda x, axis: np.nansum(np.abs(x) ** p, axis) ** (1 / p)  # noqa: E731
    of = {"AVG": np.nanmean, "MAX": np.nanmax, "LPPOOL": lengths}[kind]
    made = of(windows.reshape(*windows.shape[: padded.ndim], -1), axis=-1)
    y[tuple(map(slice, made.shape))] = made
    return y


@cache
def cases():
    """All tests of operators, and of functions written out in them."""
    pooling = importlib.import_module("onnx.reference.ops.op_pool_common")
    numpy_helper = importlib.import_module("onnx.numpy_helper")
    node = importlib.import_module("onnx.backend.test.case.node")
    with warnings.catch_warnings(), mock.patch.object(pooling, "pool", pooled):
        warnings.simplefilter("ignore")
        for module in pkgutil.iter_modules(node.__path__):
            importlib.import_module(f"{node.__name__}.{module.name}")
    found, weights = [], {}
    for case in sorted(node._NodeTestCases, key=lambda case: len(case.model.graph.node)):
        nodes = case.model.graph.node
        op = nodes[0].op_type if len(nodes) == 1 else WRITTEN_OUT
        places = (1,) if op.startswith("Reduce") else CONSTANTS.get(op, ())
        constant = {nodes[0].input[k] for k in places if k < len(nodes[0].input)}
        weights[case.name] = constant
        if op == WRITTEN_OUT:
            constant = weights.get(case.name.partition("_expanded")[0], set())
        arrays = [
            [numpy_helper.to_array(a) if hasattr(a, "raw_data") else a for a in given]
            for given in case.data_sets[0]
        ]
        found.append(Case(case.name, op, case.model, constant, *arrays, case.rtol, case.atol))
    return found


def outcome(case):
    """ "passed", "refused", or what is wrong."""
    told = []
    for axis in (0, None, 1):
        # Where samples stand is not in the file: along the first axis, nowhere, or the second.
        try:
            wrong = _difference(case, axis)
        except SingaNetError as error:
            told.append(f"refused: {error}")
            continue
        if wrong is None:
            return "passed"
        if axis != 0:
            return wrong
    return told[0]


def _difference(case, axis):
    """How the net's outputs differ; None where they do not."""
    data = case.model.SerializeToString()
    budget = Budget(len(data) + (1 << 22), partial(_forged, case.name))
    graph = graph_of(ModelProto.FromString(data), Path(), case.name, budget)
    names = [info.name for info in case.model.graph.input]
    fed = {}
    ports = []
    for port in graph.inputs:
        array = np.asarray(case.inputs[names.index(port.name)])
        if port.name in case.constant:
            graph.arrays[port.name] = array
        else:
            ports.append(Port(port.name, port.dtype, tuple(array.shape)))
            fed[port.name] = array
    graph.inputs = ports
    net = build(graph, budget, case.name, {}, axis, seed=0)
    given = {}
    for name in net.ports().inputs:
        array = fed[name]
        if axis is None or not array.ndim:
            given[name] = array[None]
        else:
            given[name] = np.moveaxis(array, min(axis, array.ndim - 1), 0)
    with np.errstate(all="ignore"):
        made = net.forward(False, given)
    ends = net.ports().outputs
    made = made if isinstance(made, dict) else {ends[0][0]: made}
    for (name, k), wanted in zip(ends, case.outputs, strict=False):
        found = made[name][k] if isinstance(made[name], (list, tuple)) else made[name]
        if not _agree(case, np.asarray(found), np.asarray(wanted), axis):
            return f"wrong with the samples along axis {axis}: {found.shape} for {wanted.shape}"
    return None


def _agree(case, found, wanted, axis):
    found = found[0] if axis is None else found
    tries = [found]
    if axis is not None and found.ndim == wanted.ndim:
        tries += [np.moveaxis(found, 0, k) for k in range(1, found.ndim)]
    if axis == 0 and found.size == wanted.size:
        # What is folded into the samples stands beside them here.
        tries.append(found.reshape(wanted.shape))
    # The net computes in floats of 32 bits, except where the inputs are of 64; halves are rounded.
    atol = 1e-3 if wanted.dtype == np.float16 else max(case.atol, 1e-6)
    return any(
        each.shape == wanted.shape
        and np.allclose(each.astype(float), wanted.astype(float), case.rtol, atol, equal_nan=True)
        for each in tries
    )


def _forged(where, expected, received):
    return UnsafeFileError(where, expected=expected, received=received, advice="")


def table(counts, left_out):
    """The rows of docs/onnx.md: operators of which some tests pass, and the rest."""
    rows = ["| operator | tests | pass | refused | left out |", "|---|---|---|---|---|"]
    others = []
    for op in sorted(counts, key=str.lower):
        passed, refused = counts[op]["passed"], counts[op]["refused"]
        if not passed:
            others.append(f"{op} {refused + left_out[op]}")
            continue
        total = passed + refused + left_out[op]
        rows.append(f"| {op} | {total} | {passed} | {refused or ''} | {left_out[op] or ''} |")
    passed = sum(each["passed"] for each in counts.values())
    rows += ["", f"{passed} tests pass. Refused as a whole: {', '.join(others)}."]
    return "\n".join(rows)


def count():
    """How the tests of each operator end, and what is wrong."""
    import re

    counts, left_out, wrong = {}, Counter(), []
    for case in cases():
        tally = counts.setdefault(case.op, Counter())
        if any(re.search(pattern, case.name) for pattern in LEFT_OUT):
            left_out[case.op] += 1
            continue
        found = outcome(case)
        kind = found.split(":")[0] if found != "passed" else found
        tally[kind if kind in ("passed", "refused") else "wrong"] += 1
        if kind not in ("passed", "refused"):
            wrong.append(f"{case.op} {case.name}: {found}")
    return counts, left_out, wrong


if __name__ == "__main__":
    counted, left, wrong = count()
    sys.stdout.write(table(counted, left) + "\n")
    sys.stderr.write("\n".join(wrong) + "\n")
