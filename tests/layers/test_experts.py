"""MixtureOfExperts."""

import numpy as np
import pytest

from singanet import FeedForwardNet, Input, onnx
from singanet.errors import ArgumentError, CallOrderError, ShapeError, UnknownNameError
from singanet.layers import MixtureOfExperts
from singanet.loss import SquaredError
from singanet.optimizer import SGD
from singanet.summary import layer_rows
from tests.kit.layers import case, cases


def experts(shape=(4, 3), batch=3, **given):
    """A layer against loops over rows and experts."""
    make = lambda: MixtureOfExperts("moe", 5, 4, **given)  # noqa: E731

    def expected(p, x):
        layer, y = make(), np.zeros((x.size // x.shape[-1], x.shape[-1]))
        for k, row in enumerate(x.reshape(-1, x.shape[-1])):
            scores = np.exp(row @ p["router_weight"])
            scores /= scores.sum()
            chosen = np.argsort(-scores)[: layer.top_k]
            share = scores[chosen] / (scores[chosen].sum() if layer.normalized else 1.0)
            for each, e in zip(share, chosen, strict=True):
                gate = row @ p[f"gate_{e}_weight"]
                f = np.maximum(gate, 0) if layer.mode == "relu" else gate / (1 + np.exp(-gate))
                y[k] += each * ((f * (row @ p[f"up_{e}_weight"])) @ p[f"down_{e}_weight"])
        return y.reshape(x.shape)

    return case(make, shape, expected, batch=batch)


CASES = {
    "MixtureOfExperts": experts(),
    "MixtureOfExperts, not normalized": experts(normalized=False, top_k=3),
    "MixtureOfExperts, one": experts((3,), top_k=1, normalized=False),
    "MixtureOfExperts, all": experts((3,), 9, top_k=4, mode="relu"),
}


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


def net_of(enabled, steps=None):
    x = Input("x", (steps, 64))
    y = MixtureOfExperts("moe", 96, 6)(x)
    net = FeedForwardNet(inputs=x, outputs=y, loss=SquaredError(), seed=0)
    net.programs.enabled = enabled
    return net


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recorded_steps_choose_anew(dtype, rng):
    """Each step has other rows for each expert, and in one batch some experts have none."""
    nets, rules = [net_of(True), net_of(False)], [SGD(lr=0.1), SGD(lr=0.1)]
    for net in nets:
        net.as_type(dtype)
    for k in range(5):
        x, y = rng.standard_normal((2, 2, 5, 64)).astype(np.float32)
        x[:, 1:] = x[:, :1] if k == 3 else x[:, 1:]
        one, other = (net.step(x, y, rule) for net, rule in zip(nets, rules, strict=True))
        assert one == other
    assert nets[0].programs.reports()
    assert not nets[0].programs.notes
    for a, b in zip(nets[0].param_values(), nets[1].param_values(), strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b))
    tolerance = 1e-6 if dtype == "float32" else 1e-2
    assert np.allclose(nets[0].predictor()(x), nets[1].predict(x), atol=tolerance)


@pytest.mark.parametrize(("dtype", "error"), [("int8", 0.02), ("int4", 0.2)])
def test_experts_are_quantized(dtype, error, rng):
    net, x = net_of(True), rng.standard_normal((3, 4, 64)).astype(np.float32)
    before = net.predict(x)
    net.quantize(dtype)
    after = net.predict(x)
    assert 0 < abs(after - before).max() < error * abs(before).max()


def test_the_work_grows_with_the_chosen_experts():
    net = net_of(False, 10)
    (row,) = [row for row in layer_rows(net) if row.name == "moe"]
    assert row.multiply_adds == 10 * 64 * (6 + 3 * 96 * 2)


def test_there_are_no_second_derivatives_and_no_form_in_onnx(tmp_path, rng):
    net, x = net_of(False, 4), rng.standard_normal((2, 4, 64)).astype(np.float32)
    with pytest.raises(CallOrderError, match="no known derivative"):
        net.hessian_vector_product("moe", ["x"], {"x": x}, {"x": x})
    with pytest.raises(ArgumentError, match="experts that multiply the rows"):
        onnx.save(net, tmp_path / "net.onnx")


@pytest.mark.parametrize(("make", "kind", "match"), [
    (lambda: MixtureOfExperts("it", 4, 3, top_k=4), ArgumentError, "argument top_k"),
    (lambda: MixtureOfExperts("it", 4, 0), ArgumentError, "argument num_experts"),
    (lambda: MixtureOfExperts("it", 4, 3, mode="softcap"), UnknownNameError, "argument mode"),
    (lambda: MixtureOfExperts("it", 4, 3).build((4, None)), ShapeError, "the last one known"),
])  # fmt: skip
def test_refusals(make, kind, match):
    with pytest.raises(kind, match=match):
        make()
