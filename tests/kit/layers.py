"""Cases of layers as rows of a table, what layers refuse, and functions of PyTorch beside them."""

import numpy as np
import pytest

from singanet.errors import SingaNetError
from singanet.layers import Context
from singanet.ops import numpy_ops, ops_for
from singanet.testing import LayerCase
from singanet.testing.layer_case import map_parts, parts_of


def case(make, in_shapes, expected, draw=None, base=LayerCase, **attributes):
    """A `LayerCase` of functions: ``expected(params, x)`` and ``draw(rng, *shapes)``.

    Each of the shapes is of a whole input, with the batch.
    """
    methods = {"make": staticmethod(make), "expected": staticmethod(expected)}
    if draw is not None:

        def drawn(self, rng, batch):
            shapes = self.in_shapes if isinstance(self.in_shapes, list) else [self.in_shapes]
            return draw(rng, *[(batch, *shape) for shape in shapes])

        methods["draw"] = drawn
    return type("Case", (base,), {"in_shapes": in_shapes, **methods, **attributes})()


def cases(table):
    """Parametrize a test by ``case``, one of a dict."""
    return pytest.mark.parametrize("case", table.values(), ids=table)


def run(layer, x, dy=None, train=True, **params):
    """Build and run ``layer`` on ``x``: the output; with ``dy`` also both gradients.

    ``params`` replace those that are drawn.
    """
    if layer.out_shapes is None:
        layer.build([a.shape[1:] for a in x] if isinstance(x, list) else x.shape[1:])
    for suffix, value in params.items():
        layer.params[suffix].retype(value)
    runner = LayerCase()
    ctx, y = runner.run(layer, x, train)
    return y if dy is None else (y, *runner.run_backward(layer, ctx, dy))


def refuses(rows):
    """Parametrize a test by ``make``, ``words``: the calls of a table that have to be refused.

    A row is a call, the class of its error and a pattern of its text.
    """
    return pytest.mark.parametrize(("make", "error", "words"), rows)


def expect_refused(make, error, words):
    """Expect an error of the class, of which the text begins with the layer and has all parts."""
    with pytest.raises(error, match=words) as caught:
        make()
    assert isinstance(caught.value, SingaNetError)
    assert "received" in str(caught.value)


def beside_torch(make, shape, function, dtype=np.float32, batch=3, x=None, exact=False):
    """Compare outputs and gradients with those of ``function(functional, x, params)`` in PyTorch.

    ``x`` and ``params`` are tensors; those of the parameters come by suffix, drawn at random.
    Sums of many terms are compared relative to the largest.
    """
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the peers extra")
    runner = case(make, shape, None)
    layer = runner.built(np, dtype)
    x = map_parts(lambda a: a.astype(dtype), runner.inputs(np, dtype, batch) if x is None else x)
    leaves = [torch.tensor(a, requires_grad=True) for a in parts_of(x)]
    params = {s: torch.tensor(p.value, requires_grad=p.trainable) for s, p in layer.params.items()}
    theirs = function(torch.nn.functional, leaves if isinstance(x, list) else leaves[0], params)
    dy = np.random.default_rng(1).standard_normal(theirs.shape).astype(dtype)
    theirs.backward(torch.tensor(dy))
    wanted = {"y": theirs.detach(), **{f"dx{k}": leaf.grad for k, leaf in enumerate(leaves)}}
    wanted |= {suffix: p.grad for suffix, p in params.items()}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    for ops in {numpy_ops, ops_for(parts_of(x)[0])}:
        values = {suffix: param.value for suffix, param in layer.params.items()}
        ctx = Context(ops, np.random.default_rng(0), values, True, True, np.dtype(dtype))
        y = layer.forward(ctx, x)
        dx, grads = runner.run_backward(layer, ctx, dy)
        found = {"y": y, **{f"dx{k}": part for k, part in enumerate(parts_of(dx))}, **grads}
        for name, want in wanted.items():
            want = want.numpy()
            assert found[name].dtype == dtype, name
            close = 0 if exact else 1e-5 if dtype == np.float32 else 1e-11
            room = close * max(1.0, float(np.abs(want).max(initial=0)))
            np.testing.assert_allclose(found[name], want, rtol=close, atol=room, err_msg=name)


def built(layer, shapes):
    """``layer``, built for samples of ``shapes``."""
    layer.build(shapes)
    return layer
