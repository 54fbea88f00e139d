"""Files that were written, checked by ONNX's own checker and run by ONNX Runtime."""

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.onnx import save

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
node = onnx.helper.make_node


def checked(path):
    """The model at ``path``, which ONNX's checker takes, shapes included."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return model


def ran(path, feed, as_written=False):
    """The outputs of the file for arrays by the names of its inputs, by their names.

    ``as_written`` operator by operator: ONNX Runtime's own fusions take some graphs for norms that
    are none (mean − x in place of x − mean).
    """
    return running(path, as_written)(feed)


def running(path, as_written=False):
    """What gives `ran` for one feed after the other."""
    options = ort.SessionOptions()
    if as_written:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feed: dict(zip(names, session.run(None, feed), strict=True))


def file_of(nodes, inputs, outputs, arrays, path, opset=18, **more):
    """A file of those nodes; inputs, of floats or of ``kinds``, and arrays by name."""
    helper, kind, kinds = onnx.helper, onnx.TensorProto.FLOAT, more.pop("kinds", {})
    info, array = helper.make_tensor_value_info, onnx.numpy_helper.from_array
    given = [info(name, kinds.get(name, kind), shape) for name, shape in inputs.items()]
    made = [info(name, kind, None) for name in outputs]
    constants = [array(np.asarray(a), name) for name, a in arrays.items()]
    graph = helper.make_graph(nodes, "g", given, made, constants)
    imports = [helper.make_opsetid("", opset), *more.pop("imports", ())]
    onnx.save(helper.make_model(graph, opset_imports=imports, **more), path)
    return path


def drawn(layer, shapes, rng=None):
    """A net of that layer behind one float input for each shape, with random parameters."""
    rng = np.random.default_rng(7) if rng is None else rng
    inputs = [Input(f"in{k}", shape) for k, shape in enumerate(shapes)]
    outputs = layer(*inputs)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    return filled(FeedForwardNet(inputs=inputs, outputs=outputs, seed=1), rng)


def filled(net, rng):
    """The net with parameters that differ from place to place, variances positive."""
    for param in net.params():
        values = rng.standard_normal(param.shape)
        param.value[...] = np.abs(values) + 0.5 if param.name.endswith("/var") else 0.3 * values
    return net


def floats(shapes, count=3, seed=3):
    """A batch for `drawn`."""
    rng = np.random.default_rng(seed)
    shapes = ((count, *shape) for shape in shapes)
    return {f"in{k}": rng.standard_normal(s).astype(np.float32) for k, s in enumerate(shapes)}


def expect_same(net, feed, path, opset=17, tolerance=1e-5):
    """Save ``net`` and compare what comes of ``feed`` here and there, of a part of it too."""
    save(net, path, opset)
    model, runs = checked(path), running(path)
    for count in (None, 1):
        part = {name: x[:count] for name, x in feed.items()}
        want = net.forward(False, part)
        want = want if isinstance(want, dict) else {net._execution_plan().outputs[0]: want}
        wanted = {
            (f"{name}/{k}" if isinstance(y, list) else name): array
            for name, y in want.items()
            for k, array in enumerate(y if isinstance(y, list) else [y])
        }
        found = runs(part)
        assert found.keys() == wanted.keys()
        for name, y in wanted.items():
            assert (found[name].shape, found[name].dtype) == (y.shape, y.dtype)
            largest = max(1.0, float(np.abs(y).max(initial=0)))
            np.testing.assert_allclose(found[name], y, rtol=0, atol=tolerance * largest)
    return model
