"""The vision transformer."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.commands.runs.tasks import load_task
from singanet.errors import ShapeError
from singanet.models import build, find
from singanet.models.sequences import patches
from singanet.optimizer import Adam

# timm's vit_tiny_patch16_224; torchvision's vit_b_16 and vit_b_32.
PUBLISHED = {
    5_717_416: {},
    86_567_656: {"width": 768, "heads": 12},
    88_224_232: {"width": 768, "heads": 12, "patch": 32},
}


@pytest.mark.parametrize("published", PUBLISHED)
def test_the_counts_are_the_published_ones(published, count):
    assert count(build("vit_tiny", **PUBLISHED[published])) == (published, 0)


@pytest.mark.parametrize(("size", "tokens"), [(224, 197), (64, 17), (32, 65), (28, 50), (8, 17)])
def test_patches_fit_the_image(size, tokens):
    net = build("vit_tiny", (3, size, size), 10, depth=1)
    assert net["token"].out_shapes == (tokens, 192)


def test_sides_that_patches_do_not_fill_are_refused():
    with pytest.raises(ShapeError, match="model vit: expected images whose sides are multiples of"):
        build("vit_tiny", (3, 75, 64), 10)
    assert build("vit_tiny", (3, 75, 64), 10, patch=1, depth=1)["token"].out_shapes[0] == 4801


def test_a_patch_is_one_step_of_the_sequence_in_reading_order():
    image = Input("image", (1, 4, 6))
    net = FeedForwardNet(inputs=image, outputs=patches(image, 8, 2), seed=0)
    x = np.zeros((1, 1, 4, 6), np.float32)
    x[..., 2:4, 4:6] = 1.0
    rows = net.forward(False, x)[0]
    # Where the pixels are zero, the patch is the bias of the convolution.
    assert rows.shape == (6, 8)
    assert np.flatnonzero(abs(rows - rows[0]).max(axis=1) > 1e-6).tolist() == [5]


def test_it_learns_small_images(rng):
    net = build("vit_tiny", (1, 8, 8), 4, seed=0, width=16, depth=2, heads=2)
    x = rng.standard_normal((8, 1, 8, 8)).astype(np.float32)
    optimizer = Adam(lr=0.01)
    losses = [net.step(x, np.arange(8) % 4, optimizer)[0] for _ in range(25)]
    assert losses[-1] < 0.2 * losses[0]


def test_it_computes_what_pytorchs_encoder_does(rng):
    torch = pytest.importorskip("torch")
    net = build("vit_tiny", (3, 8, 8), 5, seed=0, width=12, depth=2, heads=3)
    w = {p.name: torch.tensor(p.value) for p in net.params()}

    def block(k):
        at, dense = f"block{k}_attention", f"block{k}_dense"
        peer = torch.nn.TransformerEncoderLayer(
            12, 3, 48, 0.0, "gelu", batch_first=True, norm_first=True
        )
        inward = [w[f"{at}/{part}_weight"].T for part in ("query", "key", "value")]
        biases = [w[f"{at}/{part}_bias"] for part in ("query", "key", "value")]
        named = {
            "self_attn.in_proj_weight": torch.cat(inward),
            "self_attn.in_proj_bias": torch.cat(biases),
            "self_attn.out_proj.weight": w[f"{at}/output_weight"].T,
            "self_attn.out_proj.bias": w[f"{at}/output_bias"],
        }
        for name, part in (("linear1", f"{dense}1"), ("linear2", f"{dense}2")):
            named |= {f"{name}.weight": w[f"{part}/weight"].T, f"{name}.bias": w[f"{part}/bias"]}
        for name, part in (("norm1", f"{at}_norm"), ("norm2", f"{dense}_norm")):
            named |= {f"{name}.weight": w[f"{part}/gamma"], f"{name}.bias": w[f"{part}/beta"]}
        peer.load_state_dict(named)
        return peer.eval()

    x = rng.standard_normal((2, 3, 8, 8)).astype(np.float32)
    kernels = w["patches/weight"].reshape(12, 3, 2, 2)
    y = torch.nn.functional.conv2d(torch.tensor(x), kernels, w["patches/bias"], stride=2)
    y = torch.cat([w["token/weight"].expand(2, 1, 12), y.flatten(2).transpose(1, 2)], 1)
    y = block(2)(block(1)(y + w["position/weight"]))
    y = torch.nn.functional.layer_norm(y, (12,), w["norm/gamma"], w["norm/beta"])[:, 0]
    want = (y @ w["fc/weight"] + w["fc/bias"]).detach().numpy()
    np.testing.assert_allclose(net.forward(False, x), want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_narrow_one_learns_the_digits():
    # The whole one has 0.983 after its 15 epochs, which take a core ten minutes.
    entry = find("vit_tiny")
    task = load_task(entry, None)
    net = build("vit_tiny", (1, 8, 8), 10, seed=0, width=48, depth=3)
    net.compile(Adam(lr=0.002))
    net.fit(task.train_batches(entry.recipe, 0), epochs=15, verbose=False)
    assert net.evaluate(task.test_batches())[1] > 0.93
