"""MultiHeadAttention against the attention of published models, as transformers computes it."""

import numpy as np
import pytest

from singanet.layers import (
    Context,
    MultiHeadAttention,
    QueryKeyNorm,
    RelativePositions,
    RotaryEmbedding,
)
from singanet.ops import numpy_ops

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the peers extra")
pytest.importorskip("transformers", reason="transformers is not installed: the peers extra")

SIZE = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
        "attention_dropout": 0.0}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}  # fmt: skip


def llama():
    from transformers.models.llama import modeling_llama as m

    rope = {"rope_theta": 100.0, **LLAMA3}
    config = m.LlamaConfig(**SIZE, rope_parameters=rope, attention_bias=True)
    ours = {"rotary": RotaryEmbedding(100.0, scaling=LLAMA3)}
    return m.LlamaAttention(config, 0), m.LlamaRotaryEmbedding(config), ours


def qwen2():
    from transformers.models.qwen2 import modeling_qwen2 as m

    config = m.Qwen2Config(**SIZE)
    ours = {"rotary": RotaryEmbedding(), "use_bias": ("query", "key", "value")}
    return m.Qwen2Attention(config, 0), m.Qwen2RotaryEmbedding(config), ours


def qwen3():
    from transformers.models.qwen3 import modeling_qwen3 as m

    config = m.Qwen3Config(**SIZE, head_dim=8)
    ours = {"rotary": RotaryEmbedding(), "use_bias": False, "key_dim": 8, "norm": QueryKeyNorm()}
    return m.Qwen3Attention(config, 0), m.Qwen3RotaryEmbedding(config), ours


def olmo2():
    from transformers.models.olmo2 import modeling_olmo2 as m

    config = m.Olmo2Config(**SIZE, rms_norm_eps=1e-5)
    ours = {"rotary": RotaryEmbedding(), "use_bias": False, "norm": QueryKeyNorm(1e-5, joint=True)}
    return m.Olmo2Attention(config, 0), m.Olmo2RotaryEmbedding(config), ours


def glm():
    from transformers.models.glm import modeling_glm as m

    rope = {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    config = m.GlmConfig(**SIZE, head_dim=8, rope_parameters=rope, attention_bias=False)
    rotary = RotaryEmbedding(interleaved=True, fraction=0.5)
    ours = {"rotary": rotary, "use_bias": False, "key_dim": 8}
    return m.GlmAttention(config, 0), m.GlmRotaryEmbedding(config), ours


def gemma3():
    from transformers.models.gemma3 import modeling_gemma3 as m

    scaling = {"rope_type": "linear", "factor": 8.0}
    config = m.Gemma3TextConfig(
        **SIZE, head_dim=8, query_pre_attn_scalar=8, layer_types=["full_attention"],
        num_hidden_layers=1,
        rope_parameters={"full_attention": {"rope_theta": 1e6, **scaling}},
    )  # fmt: skip
    rotary = RotaryEmbedding(1e6, scaling=scaling)
    norm = QueryKeyNorm(config.rms_norm_eps, offset=1.0)
    ours = {"rotary": rotary, "use_bias": False, "key_dim": 8, "norm": norm}
    angles = m.Gemma3RotaryEmbedding(config)
    return m.Gemma3Attention(config, 0), lambda x, at: angles(x, at, "full_attention"), ours


def copied(layer, theirs):
    """Give ``layer`` the arrays of PyTorch's, and tell which is which."""
    parts = {"query": "q", "key": "k", "value": "v", "output": "o"}
    modules = dict(theirs.named_modules())
    pairs = {}
    for suffix, param in layer.params.items():
        part, _, what = suffix.partition("_")
        module = modules[f"{parts[part]}_{'norm' if what == 'gamma' else 'proj'}"]
        tensor = module.bias if what == "bias" else module.weight
        torch.nn.init.normal_(tensor, 0.0 if what != "gamma" else 1.0, 0.5)
        array = tensor.detach().numpy()
        param.retype(np.array(array.T if array.ndim == 2 else array))
        pairs[suffix] = tensor
    return pairs


def expect_close(got, want):
    """Within what their angles and norms, which are in float32, allow of the largest element."""
    np.testing.assert_allclose(got, want, rtol=0, atol=5e-6 * np.abs(want).max())


@pytest.mark.parametrize("model", [llama, qwen2, qwen3, olmo2, glm, gemma3])
def test_outputs_and_gradients_equal_transformers(model, rng):
    torch.manual_seed(0)
    theirs, angles, given = model()
    theirs = theirs.double()
    theirs.config._attn_implementation = "eager"
    layer = MultiHeadAttention("att", 4, num_kv_heads=2, causal=True, **given)
    layer.build((20, 24))
    pairs = copied(layer, theirs)
    assert {id(t) for t in pairs.values()} == {id(t) for t in theirs.parameters()}
    x, dy = (rng.standard_normal((2, 20, 24)) for _ in range(2))
    params = {suffix: param.value for suffix, param in layer.params.items()}
    ctx = Context(numpy_ops, rng, params, train=True)
    y = layer.forward(ctx, x)
    dx, grads = layer.backward(ctx, dy)
    tx = torch.tensor(x, requires_grad=True)
    cos, sin = angles(tx, torch.arange(20)[None])
    hidden = torch.full((20, 20), -torch.inf, dtype=torch.float64).triu(1)
    ty = theirs(hidden_states=tx, position_embeddings=(cos, sin), attention_mask=hidden)[0]
    ty.backward(torch.tensor(dy))
    expect_close(y, ty.detach().numpy())
    expect_close(dx, tx.grad.numpy())
    for suffix, tensor in pairs.items():
        expect_close(grads[suffix], tensor.grad.numpy().T)


@pytest.mark.parametrize("decoder", [False, True])
def test_relative_positions_equal_t5s(decoder, rng):
    from transformers.models.t5 import modeling_t5 as m

    torch.manual_seed(0)
    config = m.T5Config(d_model=24, d_kv=5, num_heads=4, relative_attention_num_buckets=16,
                        relative_attention_max_distance=24, dropout_rate=0.0,
                        is_decoder=decoder)  # fmt: skip
    theirs = m.T5Attention(config, has_relative_attention_bias=True).double()
    relative = RelativePositions(16, 24, bidirectional=not decoder)
    layer = MultiHeadAttention(
        "att", 4, 5, scale=1.0, use_bias=False, causal=decoder, mask="boolean", relative=relative
    )
    layer.build([(40, 24), (40,)])
    pairs = {"relative_weight": theirs.relative_attention_bias.weight}
    pairs |= {f"{part}_weight": getattr(theirs, part[0]).weight for part in ("query", "key")}
    pairs |= {"value_weight": theirs.v.weight, "output_weight": theirs.o.weight}
    for suffix, tensor in pairs.items():
        torch.nn.init.normal_(tensor, 0.0, 0.5)
        array = tensor.detach().numpy()
        layer.params[suffix].retype(np.array(array if suffix == "relative_weight" else array.T))
    x, dy = (rng.standard_normal((2, 40, 24)) for _ in range(2))
    there = np.arange(40) < np.array([[40], [31]])
    params = {suffix: param.value for suffix, param in layer.params.items()}
    ctx = Context(numpy_ops, rng, params, train=True)
    y = layer.forward(ctx, [x, there])
    (dx, _), grads = layer.backward(ctx, dy)
    tx = torch.tensor(x, requires_grad=True)
    seen = torch.tensor(there)[:, None, None].expand(2, 1, 40, 40)
    seen = seen.tril() if decoder else seen
    hidden = torch.zeros(2, 1, 40, 40, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    ty = theirs(tx, mask=hidden)[0]
    ty.backward(torch.tensor(dy))
    expect_close(y, ty.detach().numpy())
    expect_close(dx, tx.grad.numpy())
    for suffix, tensor in pairs.items():
        want = tensor.grad.numpy()
        expect_close(grads[suffix], want if suffix == "relative_weight" else want.T)
