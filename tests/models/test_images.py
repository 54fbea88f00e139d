"""Ready nets for images: published counts and sizes, what they learn and what they refuse."""

import copy
import itertools
import math

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.commands.runs.run import run
from singanet.commands.runs.run_options import RunOptions
from singanet.commands.runs.tasks import load_task
from singanet.errors import ArgumentError, ShapeError
from singanet.models import build, find
from singanet.models.mobile import rounded
from singanet.models.sequences import patches
from singanet.optimizer import SGD, Adam

SLOW, PHOTO = pytest.mark.slow, (3, 224, 224)

# -- formulas -------------------------------------------------------------------------------


def resnet(depth):
    """Weights of the 3×3 convolutions, factor and offset of each, and the dense layer."""
    n = (depth - 2) // 6
    sizes = [(3, 16)] + 2 * n * [(16, 16)]
    sizes += [(16, 32)] + (2 * n - 1) * [(32, 32)] + [(32, 64)] + (2 * n - 1) * [(64, 64)]
    assert len(sizes) == depth - 1
    return sum(9 * a * b + 2 * b for a, b in sizes) + 650, 2 * sum(b for _, b in sizes)


def preactivated(n, widths, projection):
    """Numbers of three stages of ``n`` blocks with a normalisation before each convolution."""
    total, into = 27 * 16, 16
    for width in widths:
        for block in range(n):
            total += 2 * into + 9 * into * width + 2 * width + 9 * width * width
            total += into * width if projection and block == 0 and into != width else 0
            into = width
    return total + 2 * into + (into + 1) * 10


VGG = {
    11: (64, 128, 256, 256, 512, 512, 512, 512),
    13: (64, 64, 128, 128, 256, 256, 512, 512, 512, 512),
    16: (64, 64, 128, 128, 256, 256, 256, *[512] * 6),
    19: (64, 64, 128, 128, *[256] * 4, *[512] * 8),
}
# Of torchvision's vgg*_bn without its dense layers; it has biases, and all the rest as here.
FEATURES = {11: 9_225_984, 13: 9_410_880, 16: 14_723_136, 19: 20_035_392}


def vgg(depth):
    channels = VGG[depth]
    # Depth counts the convolutions and the three dense layers of the original head.
    assert len(channels) == depth - 3
    weights = sum(9 * a * b for a, b in zip((3, *channels[:-1]), channels, strict=True))
    assert weights + 3 * sum(channels) == FEATURES[depth]
    head = 512 * 512 + 2 * 512 + 513 * 10  # SINGA's
    return FEATURES[depth] - sum(channels) + head, 2 * sum(channels) + 2 * 512


def large_vgg(depth, published):
    """torchvision's, which have no normalisation."""
    return published + 2 * sum(VGG[depth]), 2 * sum(VGG[depth])


def mobilenet(width):
    channels = [int(c * width) for c in (32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)]
    pairs = sum(9 * a + 2 * a + a * b + 2 * b for a, b in itertools.pairwise(channels))
    return 29 * channels[0] + pairs + (channels[-1] + 1) * 1000


def lenet(channels, height, width):
    height, width = (math.ceil(math.ceil(axis / 2) / 2) for axis in (height, width))
    dense = (64 * height * width + 1) * 256 + 257 * 6
    return 32 * (25 * channels + 1) + 64 * (25 * 32 + 1) + dense


# -- the tables -----------------------------------------------------------------------------

COUNTS = [
    # Name, arguments, the trained numbers, and the others or None.
    ("alexnet", (), {}, 32 * 76 + 32 * 801 + 64 * 801 + 10 * 1025, 0),  # Caffe's cifar10_full
    *(("lenet", (s, 6), {}, lenet(*s), 0) for s in ((1, 28, 28), (3, 7, 10), (2, 1, 1))),
    *((f"resnet{depth}", (), {}, *resnet(depth)) for depth in (20, 32, 44, 56, 110)),
    # torchvision's.
    ("resnet18", (), {}, 11_689_512, None),
    ("resnet34", (), {}, 21_797_672, None),
    ("resnet50", (), {}, 25_557_032, None),
    ("resnet101", (), {}, 44_549_160, None),
    ("resnet152", (), {}, 60_192_808, None),
    *(
        (f"preresnet{d}", (), {}, preactivated((d - 2) // 6, (16, 32, 64), False), None)
        for d in (20, 56, 110)
    ),
    ("wrn-16-4", (), {}, preactivated(2, (64, 128, 256), True), None),
    ("wrn-28-10", (), {}, preactivated(4, (160, 320, 640), True), None),
    *((f"vgg{depth}", (), {}, *vgg(depth)) for depth in VGG),
    ("vgg11", (PHOTO, 1000), {}, *large_vgg(11, 132_863_336)),
    ("vgg13", (PHOTO, 1000), {}, *large_vgg(13, 133_047_848)),
    ("vgg16", (PHOTO, 1000), {}, *large_vgg(16, 138_357_544)),
    ("vgg19", (PHOTO, 1000), {}, *large_vgg(19, 143_667_240)),
    # Caffe's bvlc_googlenet without the classifiers on the way.
    ("googlenet", (), {}, 6_998_552, 0),
    # keras.applications.MobileNet(): 4,253,864 parameters.
    ("mobilenet", (), {}, 4_231_976, 21_888),
    *(("mobilenet", (), {"width": width}, mobilenet(width), None) for width in (0.25, 0.5)),
    # torchvision's weights (num_params), without running statistics; these are the totals of
    # keras.applications less the trained ones there, and seven of EfficientNet's Normalization.
    ("mobilenet_v2", (), {}, 3_504_872, 3_538_984 - 3_504_872),
    ("mobilenet_v3_small", (), {}, 2_542_856, 2_554_968 - 2_542_856),
    ("mobilenet_v3_large", (), {}, 5_483_032, 5_507_432 - 5_483_032),
    ("efficientnet_b0", (), {}, 5_288_548, 5_330_571 - 7 - 5_288_548),
    # torchvision's densenet121 and densenet161; Keras counts running means and variances.
    ("densenet121", (), {}, 7_978_856, 8_062_504 - 7_978_856),
    ("densenet121", (), {"blocks": (6, 12, 36, 24), "growth": 48}, 28_681_000, None),
    # torch.hub: milesial/Pytorch-UNet for two classes, and for one; mateuszbuda's
    # brain-segmentation-pytorch with half of the channels.
    ("unet", ((3, 256, 256), 2), {"width": 64}, 31_037_698, None),
    ("unet", ((3, 256, 256), 1), {"width": 64}, 31_037_633, None),
    ("unet", ((3, 256, 256), 1), {"width": 32}, 7_763_041, None),
    # timm's vit_tiny_patch16_224; torchvision's vit_b_16 and vit_b_32.
    ("vit_tiny", (), {}, 5_717_416, 0),
    ("vit_tiny", (), {"width": 768, "heads": 12}, 86_567_656, 0),
    ("vit_tiny", (), {"width": 768, "heads": 12, "patch": 32}, 88_224_232, 0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "options", "trained", "others"), COUNTS)
def test_the_counts_are_the_published_ones(name, given, options, trained, others, count):
    found = count(build(name, *given, **options))
    assert found == (trained, found[1] if others is None else others)


# In millions: He et al., 2016, table 6, with shortcuts of option A; Zagoruyko and Komodakis, 2016,
# tables 4 and 5.
@pytest.mark.parametrize(
    ("name", "published", "near"),
    [("resnet20", 0.27, 0.006), ("resnet32", 0.46, 0.006), ("resnet44", 0.66, 0.006),
     ("resnet56", 0.85, 0.006), ("resnet110", 1.7, 0.03), ("wrn-16-4", 2.7, 0.05),
     ("wrn-28-10", 36.5, 0.05)],
)  # fmt: skip
def test_the_counts_are_those_of_the_papers(name, published, near, count):
    assert count(build(name))[0] / 1e6 == pytest.approx(published, abs=near)


SIZES = [
    # torchvision's last feature maps of 224×224 pixels, which small images keep at first.
    ("resnet50", (), {}, {"pool<": (2048, 7, 7)}),
    ("resnet18", ((3, 32, 32), 10), {}, {"conv_relu": (64, 32, 32), "pool<": (512, 4, 4)}),
    ("vgg11", (PHOTO, 1000), {}, {"flat<": (512, 7, 7)}),
    ("mobilenet_v2", (), {}, {"pool<": (1280, 7, 7)}),
    ("mobilenet_v3_small", (), {}, {"pool<": (576, 7, 7)}),
    ("mobilenet_v3_large", (), {}, {"pool<": (960, 7, 7)}),
    ("mobilenet_v2", ((3, 32, 32), 10), {}, {"pool<": (1280, 4, 4)}),
    ("mobilenet_v3_large", ((3, 32, 32), 10), {}, {"pool<": (960, 4, 4)}),
    ("efficientnet_b0", ((3, 32, 32), 10), {}, {"pool<": (1280, 4, 4)}),
    *(
        ("mobilenet_v3_small", ((3, size, size), 10), {}, {"pool<": (576, left, left)})
        for size, left in ((63, 8), (32, 4), (28, 7), (8, 4), (3, 3), (1, 1))
    ),
    # Tables of the papers.
    ("googlenet", (), {}, {
        "pool1": (64, 56, 56), "conv2": (192, 56, 56), "pool2": (192, 28, 28),
        "inception_3a_output": (256, 28, 28), "inception_3b_output": (480, 28, 28),
        "inception_4a_output": (512, 14, 14), "inception_4d_output": (528, 14, 14),
        "inception_4e_output": (832, 14, 14), "inception_5b_output": (1024, 7, 7),
    }),
    ("densenet121", (), {}, {
        "conv_relu": (64, 112, 112), "conv_pool": (64, 56, 56),
        "block1_layer6_join": (256, 56, 56), "transition1_pool": (128, 28, 28),
        "block2_layer12_join": (512, 28, 28), "block3_layer24_join": (1024, 14, 14),
        "block4_layer16_join": (1024, 7, 7),
    }),
    # Of 512×512 pixels, since padding keeps the size that the paper's convolutions cut.
    ("unet", ((1, 512, 512), 2), {}, {
        "down0_conv2_relu": (64, 512, 512), "down4_conv2_relu": (1024, 32, 32),
        "up4_double": (512, 64, 64), "up4_join": (1024, 64, 64),
        "up1_conv2_relu": (64, 512, 512), "last_axis": (512, 512, 2),
    }),
    # Patches fit the image: a token each, and one for the class.
    *(
        ("vit_tiny", ((3, size, size), 10), {"depth": 1}, {"token": (tokens, 192)})
        for size, tokens in ((224, 197), (64, 17), (32, 65), (28, 50), (8, 17))
    ),
    ("vit_tiny", ((3, 75, 64), 10), {"patch": 1, "depth": 1}, {"token": (4801, 192)}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "options", "expected"), SIZES)
def test_sizes_inside_are_the_published_ones(name, given, options, expected):
    """Of the outputs of layers, and of the inputs if the name ends in <."""
    net = build(name, *given, **options)
    found = {
        key: net[key[:-1]].in_shapes if key.endswith("<") else net[key].out_shapes
        for key in expected
    }
    assert found == expected


@pytest.mark.parametrize(
    ("name", "shape", "outputs"),
    [("lenet", (1, 28, 28), (6,)), ("lenet", (3, 7, 10), (6,)), ("lenet", (2, 1, 1), (6,)),
     ("resnet18", (3, 75, 66), (6,)), ("googlenet", (1, 1, 5), (6,)), ("unet", (1, 1, 1), None),
     ("unet", (2, 7, 5), None), ("unet", (3, 16, 9), None)],
)  # fmt: skip
def test_images_of_any_size_will_do(name, shape, outputs):
    net = build(name, shape, 6, seed=0, **({"width": 2} if name == "unet" else {}))
    out = net.forward(False, np.zeros((2, *shape), np.float32))
    # U-Net: a class for every pixel.
    assert out.shape == (2, *(outputs or (*shape[1:], 6)))


def momentum(rate):
    return SGD(lr=rate, momentum=0.9)


NARROW = {"width": 16, "depth": 2, "heads": 2}
LEARNS = {
    # Side, options, rule, steps, the part of the first loss that is left.
    "alexnet": (8, {}, momentum(0.02), 25, 0.5, ()),
    "vgg11": (8, {}, momentum(0.05), 20, 0.5, SLOW),
    "resnet20": (8, {}, momentum(0.1), 25, 0.5, ()),
    "preresnet20": (8, {}, momentum(0.05), 12, 0.5, ()),
    "wrn-16-4": (8, {}, momentum(0.05), 12, 0.5, ()),
    "resnet18": (8, {}, momentum(0.02), 12, 0.5, ()),
    "resnet50": (8, {}, momentum(0.02), 12, 0.5, SLOW),
    "googlenet": (8, {}, momentum(0.01), 16, 0.5, SLOW),
    "densenet121": (8, {"blocks": (2, 2), "growth": 4}, momentum(0.1), 16, 0.5, ()),
    "lstm": (8, {"dropout": 0.0}, momentum(0.2), 40, 0.5, ()),
    "vit_tiny": (8, NARROW, Adam(lr=0.01), 25, 0.2, ()),
    "unet": (8, {"width": 4}, Adam(lr=0.02), 25, 0.3, ()),
    # Of 8×8 pixels one is left, and statistics of eight values make the losses chaotic.
    "mobilenet": (16, {"width": 0.25}, momentum(0.02), 20, 0.5, ()),
    **{
        name: (16, {"dropout": 0.0}, momentum(0.02), 30, 0.5, SLOW)
        for name in ("mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "efficientnet_b0")
    },
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=marks) for name, (*_, marks) in LEARNS.items()]
)
def test_it_learns_small_images(name, rng):
    """Four kinds of them, or which pixels are bright."""
    side, options, rule, steps, left, _ = LEARNS[name]
    net, optimizer = build(name, (1, side, side), 4, seed=0, **options), copy.deepcopy(rule)
    x = rng.standard_normal((8, 1, side, side)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int) if name == "unet" else np.arange(8) % 4
    losses = [net.step(x, y, optimizer)[0] for _ in range(steps)]
    assert min(losses[-3:]) < left * losses[0]
    assert np.isfinite(losses).all()
    assert net.predict(x).shape == (8, *y.shape[1:], 4)


@pytest.mark.parametrize(
    ("name", "given", "options", "words"),
    [
        *(
            ("resnet20", (), {"depth": depth}, r"argument depth: expected 6n \+ 2.*8, 14, 20")
            for depth in (2, 21, 20.0, -4)
        ),
        ("wrn-16-4", (), {"depth": 20}, r"wide resnet, argument depth: expected 6n \+ 4"),
        ("wrn-16-4", (), {"widen": 0}, "wide resnet, argument widen: expected an int of at least"),
        ("vgg16", (), {"depth": 12}, "vgg, argument depth: expected '11'"),
        *(
            ("mobilenet", (), {"width": width}, "mobilenet, argument width")
            for width in (0, -1.0, float("nan"), 9.0)
        ),
        ("vit_tiny", ((3, 75, 64), 10), {}, "vit: expected images whose sides are multiples of"),
        ("lstm", ((2, 3, 4, 5), 3), {}, r"model lstm: expected samples of shape \(T, F\)"),
    ],
)
def test_arguments_that_make_no_net_are_refused(name, given, options, words):
    with pytest.raises((ArgumentError, ShapeError), match=words):
        build(name, *given, **options)


# -- single nets ----------------------------------------------------------------------------


def test_shortcuts_of_resnet20_take_every_other_position_and_add_zeros(rng):
    net = build("resnet20", (3, 8, 8), 10, seed=0)
    x = rng.standard_normal((2, 3, 8, 8)).astype(np.float32)
    names = ["stage1_block3_relu", "stage2_block1_shortcut_pad"]
    out = net.forward(False, x, output=names)
    before, after = (out[name] for name in names)
    np.testing.assert_array_equal(after[:, 8:24], before[:, :, ::2, ::2])
    assert not after[:, :8].any()
    assert not after[:, 24:].any()


def test_some_layers_are_there_on_demand():
    net = build("wrn-16-4", (3, 8, 8), 10, dropout=0.3)
    assert net["stage3_block2_drop"].p == 0.3
    assert "stage3_block2_drop" not in build("wrn-16-4", (3, 8, 8), 10)
    assert "conv_pool" not in build("resnet18", (3, 32, 32), 10)
    # Of n blocks of a stage n - 1 have a shortcut: stages of 1, 2, 3, 4, 3, 3 and 1 blocks.
    nodes = build("mobilenet_v2")._graph.nodes.values()
    assert sum(node.name.endswith("_add") for node in nodes) == 1 + 2 + 3 + 2 + 2


def test_widths_are_rounded_to_eights_and_never_by_more_than_a_tenth_down():
    # The cases of the TensorFlow authors' make_divisible.
    found = [rounded(c) for c in (1, 16, 18, 20, 22, 24, 30, 67.2)]
    assert found == [8, 16, 24, 24, 24, 24, 32, 64]
    assert all(rounded(c) % 8 == 0 and rounded(c) >= 0.9 * c for c in range(1, 2000))


@pytest.mark.slow
def test_mobilenet_v2_learns_the_digits_in_five_epochs():
    figures = run(RunOptions("mobilenet_v2", epochs=5, quiet=True)).figures
    assert figures["test_accuracy"] >= 0.97


@pytest.mark.slow
def test_it_computes_what_keras_densenet_does(rng):
    peer = pytest.importorskip("keras").applications.DenseNet121(
        weights=None, input_shape=(64, 64, 3), classes=7
    )
    net = build("densenet121", (3, 64, 64), 7, seed=0)
    theirs = [layer for layer in peer.layers if layer.weights]
    ours = [node.layer for node in net.nodes() if node.layer.params]
    for layer, source in zip(ours, theirs, strict=True):
        params, values = layer.params, source.get_weights()
        if len(params) == 4:
            values = [rng.uniform(0.5, 1.5, value.shape).astype("f4") for value in values]
            source.set_weights(values)
            for name, value in zip(("gamma", "beta", "mean", "var"), values, strict=True):
                params[name].value = value.copy()
        elif len(params) == 1:
            kernels = values[0].transpose(3, 2, 0, 1)
            params["weight"].value = np.ascontiguousarray(kernels.reshape(len(kernels), -1))
        else:
            params["weight"].value, params["bias"].value = values
    x = rng.standard_normal((2, 3, 64, 64)).astype(np.float32)
    want = np.asarray(peer.predict(x.transpose(0, 2, 3, 1), verbose=0))
    # The largest difference is by an epsilon of 1.001e-5 in normalisation, where 1e-5 is here.
    np.testing.assert_allclose(net.predict(x), want, rtol=1e-3, atol=1e-5)


# -- the vision transformer -----------------------------------------------------------------


def test_a_patch_is_one_step_of_the_sequence_in_reading_order():
    image = Input("image", (1, 4, 6))
    net = FeedForwardNet(inputs=image, outputs=patches(image, 8, 2), seed=0)
    x = np.zeros((1, 1, 4, 6), np.float32)
    x[..., 2:4, 4:6] = 1.0
    rows = net.forward(False, x)[0]
    # If the pixels are zero, the patch is the bias of the convolution.
    assert rows.shape == (6, 8)
    assert np.flatnonzero(abs(rows - rows[0]).max(axis=1) > 1e-6).tolist() == [5]


def test_vit_computes_what_pytorchs_encoder_does(rng):
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
def test_a_narrow_vit_learns_the_digits():
    # The whole one has 0.983 after its 15 epochs, which take a core ten minutes.
    entry = find("vit_tiny")
    task = load_task(entry, None)
    net = build("vit_tiny", (1, 8, 8), 10, seed=0, width=48, depth=3)
    net.compile(Adam(lr=0.002))
    net.fit(task.train_batches(entry.recipe, 0), epochs=15, verbose=False)
    assert net.evaluate(task.test_batches())[1] > 0.93
