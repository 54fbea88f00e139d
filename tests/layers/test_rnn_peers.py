"""RNN, LSTM and GRU against PyTorch, weights handed over in the packed form, and against Keras."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.layers import RNN, Context
from singanet.ops import numpy_ops

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def run(layer, x):
    params = {suffix: param.value for suffix, param in layer.params.items()}
    ctx = Context(numpy_ops, np.random.default_rng(0), params, True)
    return ctx, layer.forward(ctx, x)


def torch_layer(torch, mode, **options):
    torch.manual_seed(1)
    classes = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
    if mode in classes:
        return classes[mode](5, 6, batch_first=True, **options)
    return torch.nn.RNN(5, 6, nonlinearity=mode, batch_first=True, **options)


def in_packed_order(module, value):
    """PyTorch's arrays in cuDNN's order: all matrices of each layer and direction, then biases."""
    named = dict(module.named_parameters())
    ways = [name[len("weight_ih") :] for name in named if name.startswith("weight_ih")]
    order = [f"weight_{side}{way}" for way in ways for side in ("ih", "hh")]
    order += [f"bias_{side}{way}" for way in ways for side in ("ih", "hh")]
    return np.concatenate([value(named[name]).detach().numpy().ravel() for name in order])


@pytest.mark.parametrize("mode", ["lstm", "gru", "tanh", "relu"])
@pytest.mark.parametrize(("stacks", "bidirectional"), [(1, False), (2, True)])
@pytest.mark.parametrize("ragged", [False, True])
def test_outputs_and_gradients_equal_pytorch(mode, stacks, bidirectional, ragged):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the peers extra")
    rng = np.random.default_rng(7)
    module = torch_layer(torch, mode, num_layers=stacks, bidirectional=bidirectional)
    layer = RNN("rnn", 6, mode, num_stacks=stacks, bidirectional=bidirectional, return_state=True)
    runs, states = stacks * (1 + bidirectional), 2 if mode == "lstm" else 1
    layer.build([(8, 5), *[(runs, 6)] * states, ()])
    layer.unpack(in_packed_order(module, lambda p: p))

    lengths = np.array([4, 8, 1, 6]) if ragged else np.full(4, 8)
    x = rng.standard_normal((4, 8, 5)).astype(np.float32)
    starts = [rng.standard_normal((4, runs, 6)).astype(np.float32) for _ in range(states)]
    ctx, (y, *finals) = run(layer, [x, *starts, lengths])
    dy = rng.standard_normal(y.shape).astype(np.float32)
    dy[np.arange(8) >= lengths[:, None]] = 0
    dfinals = [rng.standard_normal(f.shape).astype(np.float32) for f in finals]
    (dx, *dstarts, _), grads = layer.backward(ctx, [dy, *dfinals])

    tx = torch.tensor(x, requires_grad=True)
    # PyTorch puts the states' batch second.
    tstarts = [torch.tensor(s.transpose(1, 0, 2).copy(), requires_grad=True) for s in starts]
    utils = torch.nn.utils.rnn
    packed = utils.pack_padded_sequence(tx, torch.tensor(lengths), True, enforce_sorted=False)
    ty, tfinals = module(packed, tuple(tstarts) if mode == "lstm" else tstarts[0])
    ty, _ = utils.pad_packed_sequence(ty, True, total_length=8)
    tfinals = tfinals if mode == "lstm" else (tfinals,)
    np.testing.assert_allclose(y, ty.detach().numpy(), **CLOSE)
    for got, want in zip(finals, tfinals, strict=True):
        np.testing.assert_allclose(got, want.detach().numpy().transpose(1, 0, 2), **CLOSE)

    total = (ty * torch.tensor(dy)).sum()
    for final, d in zip(tfinals, dfinals, strict=True):
        total = total + (final.transpose(0, 1) * torch.tensor(d)).sum()
    total.backward()
    np.testing.assert_allclose(dx, tx.grad.numpy(), **CLOSE)
    for got, want in zip(dstarts, tstarts, strict=True):
        np.testing.assert_allclose(got, want.grad.numpy().transpose(1, 0, 2), **CLOSE)
    wanted = in_packed_order(module, lambda p: p.grad)
    # A few hundred terms of either sign go into each: the bound is relative to the largest.
    assert np.abs(layer.pack(grads) - wanted).max() <= 1e-5 * np.abs(wanted).max()


KERAS_GATES = {"LSTM": "ifgo", "GRU": "zrn", "SimpleRNN": "h"}


@pytest.mark.parametrize(
    ("name", "mode"), [("LSTM", "lstm"), ("GRU", "gru"), ("SimpleRNN", "tanh")]
)
@pytest.mark.parametrize("options", [{}, {"go_backwards": True, "use_bias": False}])
def test_outputs_under_a_mask_equal_keras(name, mode, options):
    keras = pytest.importorskip("keras", reason="Keras is not installed: the peers extra")
    rng = np.random.default_rng(3)
    theirs = getattr(keras.layers, name)(4, return_sequences=True, **options)
    theirs.build((None, 6, 3))
    weights = [rng.standard_normal(w.shape).astype(np.float32) for w in theirs.get_weights()]
    theirs.set_weights(weights)
    layer = RNN("rnn", 4, mode, **options)
    layer.build([(6, 3), (6,)])
    views = layer.gates()
    biases = np.atleast_2d(weights[2]) if "use_bias" not in options else ()
    for k, gate in enumerate(KERAS_GATES[name]):
        block = slice(4 * k, 4 * k + 4)
        views[f"l0/forward/{gate}/weight_x"][...] = weights[0][:, block]
        views[f"l0/forward/{gate}/weight_h"][...] = weights[1][:, block]
        for kind, bias in zip(("bias_x", "bias_h"), biases, strict=False):
            views[f"l0/forward/{gate}/{kind}"][...] = bias[block]
    x = rng.standard_normal((3, 6, 3)).astype(np.float32)
    mask = np.array([[1] * 6, [0, 1, 1, 0, 1, 0], [1, 1, 0, 0, 0, 0]], bool)
    _, y = run(layer, [x, mask])
    want = keras.ops.convert_to_numpy(theirs(x, mask=keras.ops.convert_to_tensor(mask)))
    # Keras repeats the last output where a step is missing.
    mask = mask[:, ::-1] if "go_backwards" in options else mask
    np.testing.assert_allclose(y, want * mask[:, :, None], **CLOSE)
