"""One use of every layer of singanet: how it is made, and the sample shapes it takes."""

import numpy as np

from singanet import FeedForwardNet, Input, initializer, layers

IMAGE = (2, 6, 6)
SEQUENCE = (4, 3)
VOLUME = (2, 4, 3, 4)

CATALOGUE = {
    "Activation": (lambda n: layers.Activation(n, "leaky_relu", alpha=0.2), [(5,)]),
    "AdaptiveAvgPooling1D": (lambda n: layers.AdaptiveAvgPooling1D(n, 4), [(2, 6)]),
    "AdaptiveAvgPooling2D": (lambda n: layers.AdaptiveAvgPooling2D(n, (2, None)), [IMAGE]),
    "AdaptiveAvgPooling3D": (lambda n: layers.AdaptiveAvgPooling3D(n, 2), [VOLUME]),
    "AdaptiveMaxPooling1D": (lambda n: layers.AdaptiveMaxPooling1D(n, 4), [(2, 6)]),
    "AdaptiveMaxPooling2D": (lambda n: layers.AdaptiveMaxPooling2D(n, (2, None)), [IMAGE]),
    "AdaptiveMaxPooling3D": (lambda n: layers.AdaptiveMaxPooling3D(n, 2), [VOLUME]),
    "Add": (layers.Add, [(5,), (5,)]),
    "AlphaDropout": (lambda n: layers.AlphaDropout(n, 0.3), [(5,)]),
    "Average": (layers.Average, [(5,), (5,)]),
    "AvgPooling1D": (lambda n: layers.AvgPooling1D(n, 2, 2), [(2, 6)]),
    "AvgPooling2D": (lambda n: layers.AvgPooling2D(n, (2, 3), 2, "valid"), [IMAGE]),
    "AvgPooling3D": (lambda n: layers.AvgPooling3D(n, 2, ceil_mode=True), [VOLUME]),
    "BatchNormalization": (lambda n: layers.BatchNormalization(n, momentum=0.2), [IMAGE]),
    "ByDistance": (lambda n: layers.ByDistance(n, 4, 6), [(2, 5, 8)]),
    "Cast": (layers.Cast, [(5,)]),
    "ClassToken": (lambda n: layers.ClassToken(n, 2), [SEQUENCE]),
    "Clip": (lambda n: layers.Clip(n, -0.5), [(5,)]),
    "Compare": (lambda n: layers.Compare(n, "<="), [(5,), (1,)]),
    "Concat": (lambda n: layers.Concat(n, 1), [(5,), (2,)]),
    "Conv1D": (lambda n: layers.Conv1D(n, 3, 3), [(2, 6)]),
    "Conv1DTranspose": (lambda n: layers.Conv1DTranspose(n, 3, 4, 2), [(2, 5)]),
    "Conv2D": (
        lambda n: layers.Conv2D(n, 4, (3, 1), stride=2, dilation=(1, 2), groups=2,
                                W_specs={"init": initializer.Uniform(-1.0, 1.0), "lr_mult": 2.0}),
        [IMAGE],
    ),
    "Conv2DTranspose": (lambda n: layers.Conv2DTranspose(n, 3, 3, stride=2), [IMAGE]),
    "Conv3D": (lambda n: layers.Conv3D(n, 3, (3, 2, 1), (1, 2, 1)), [VOLUME]),
    "Conv3DTranspose": (lambda n: layers.Conv3DTranspose(n, 3, (2, 1, 3), 2), [VOLUME]),
    "Cropping": (lambda n: layers.Cropping(n, (1, (0, 2))), [IMAGE]),
    "Dense": (
        lambda n: layers.Dense(n, 3, W_specs={"init": "gaussian", "mean": 0.0, "std": 0.1}),
        [(5,)],
    ),
    "DepthwiseConv1D": (lambda n: layers.DepthwiseConv1D(n, border_mode="causal"), [(2, 6)]),
    "DepthwiseConv2D": (lambda n: layers.DepthwiseConv2D(n, depth_multiplier=2), [IMAGE]),
    "Divide": (layers.Divide, [(5,), (1,)]),
    "Dot": (layers.Dot, [(5,), (5,)]),
    "Dropout": (lambda n: layers.Dropout(n, 0.3), [(5,)]),
    "Dummy": (layers.Dummy, [(5,)]),
    "Einsum": (lambda n: layers.Einsum(n, "nij,nkj->nki"), [(4, 3), (2, 3)]),
    "Embedding": (lambda n: layers.Embedding(n, 7, 3), [(4,)]),
    "EndPadding": (lambda n: layers.EndPadding(n, 2), [IMAGE]),
    "Expand": (lambda n: layers.Expand(n, (-1, 3)), [(4, 1)]),
    "Flatten": (lambda n: layers.Flatten(n, 2), [IMAGE]),
    "GLU": (layers.GLU, [SEQUENCE[::-1]]),
    "GRU": (lambda n: layers.GRU(n, 3, param_specs={"weight_h": {"init": "uniform", "low": -0.1,
                                                                 "high": 0.1}}), [SEQUENCE]),
    "GatedUnit": (lambda n: layers.GatedUnit(n, 5, 3), [SEQUENCE]),
    "Gather": (lambda n: layers.Gather(n, -1, [2, 0, 2]), [SEQUENCE]),
    "GaussianNoise": (lambda n: layers.GaussianNoise(n, 0.2), [(5,)]),
    "GlobalAvgPooling1D": (layers.GlobalAvgPooling1D, [(2, 6)]),
    "GlobalAvgPooling2D": (layers.GlobalAvgPooling2D, [IMAGE]),
    "GlobalAvgPooling3D": (layers.GlobalAvgPooling3D, [VOLUME]),
    "GlobalMaxPooling1D": (layers.GlobalMaxPooling1D, [(2, 6)]),
    "GlobalMaxPooling2D": (layers.GlobalMaxPooling2D, [IMAGE]),
    "GlobalMaxPooling3D": (layers.GlobalMaxPooling3D, [VOLUME]),
    "GroupNorm": (lambda n: layers.GroupNorm(n, 2), [(4, 6, 6)]),
    "Index": (lambda n: layers.Index(n, [0, (1, None, 2)]), [IMAGE]),
    "InstanceNorm": (layers.InstanceNorm, [IMAGE]),
    "L2Norm": (layers.L2Norm, [(5,)]),
    "LRN": (lambda n: layers.LRN(n, 3, 0.1), [IMAGE]),
    "LSTM": (lambda n: layers.LSTM(n, 3, num_stacks=2, bidirectional=True), [SEQUENCE]),
    "LayerNorm": (layers.LayerNorm, [(4, 5)]),
    "LogSoftmax": (layers.LogSoftmax, [(5,)]),
    "Masking": (lambda n: lambda x: layers.Masking(n)(x).mask, [SEQUENCE]),
    "MatMul": (lambda n: layers.MatMul(n, transpose_b=True), [(4, 3), (2, 3)]),
    "MaxPooling1D": (lambda n: layers.MaxPooling1D(n, 2, 2), [(2, 6)]),
    "MaxPooling2D": (lambda n: layers.MaxPooling2D(n, 3, 2), [IMAGE]),
    "MaxPooling3D": (lambda n: layers.MaxPooling3D(n, (2, 3, 2)), [VOLUME]),
    "Maximum": (layers.Maximum, [(5,), (5,)]),
    "Merge": (layers.Merge, [(5,), (5,)]),
    "MultiHeadAttention": (
        lambda n: layers.MultiHeadAttention(n, 2, causal=True, num_kv_heads=1, mask="added",
                                            rotary=layers.RotaryEmbedding(100.0, fraction=0.5),
                                            norm=layers.QueryKeyNorm(),
                                            relative=layers.RelativePositions(4, 5),
                                            use_bias=("query", "output")),
        [(4, 8), (4, 4)],
    ),
    "Minimum": (layers.Minimum, [(5,), (5,)]),
    "MixtureOfExperts": (lambda n: layers.MixtureOfExperts(n, 5, 4), [SEQUENCE]),
    "Multiply": (layers.Multiply, [(5,), (5,)]),
    "PReLU": (layers.PReLU, [IMAGE]),
    "Operation": (lambda n: layers.Operation(n, "erf"), [(5,)]),
    "Pad": (lambda n: layers.Pad(n, ((0, 1), (2, 0), (0, 0)), -1.5), [IMAGE]),
    "Permute": (lambda n: layers.Permute(n, (2, 1)), [(4, 3)]),
    "PositionEmbedding": (lambda n: layers.PositionEmbedding(n, 8), [SEQUENCE]),
    "Positions": (lambda n: layers.Positions(n, 2), [(6,)]),
    "Power": (lambda n: layers.Power(n, 3), [(5,)]),
    "Rearrange": (lambda n: layers.Rearrange(n, (0, 2, None, 1)), [(4, 3)]),
    "Reduce": (lambda n: layers.Reduce(n, "max", (1, -1), True), [IMAGE]),
    "RepeatVector": (lambda n: layers.RepeatVector(n, 3), [(5,)]),
    "RMSNorm": (lambda n: layers.RMSNorm(n, epsilon=1e-4), [(4, 5)]),
    "RNN": (lambda n: layers.RNN(n, 3, "tanh", return_state=True), [SEQUENCE]),
    "Resize": (lambda n: layers.Resize(n, (3, None), interpolation="cubic"), [IMAGE]),
    "Reshape": (lambda n: layers.Reshape(n, (3, -1)), [IMAGE]),
    "Scale": (layers.Scale, [IMAGE]),
    "SeparableConv1D": (lambda n: layers.SeparableConv1D(n, 3, 3, 2), [(2, 6)]),
    "SeparableConv2D": (lambda n: layers.SeparableConv2D(n, 3, 3, 2), [IMAGE]),
    "SinusoidalPosition": (layers.SinusoidalPosition, [(4, 6)]),
    "Slice": (lambda n: layers.Slice(n, 1, [2, 3]), [(5,)]),
    "Softmax": (layers.Softmax, [(5,)]),
    "SimpleRNN": (lambda n: layers.SimpleRNN(n, 3, return_sequences=False), [SEQUENCE]),
    "SpatialDropout": (lambda n: layers.SpatialDropout(n, 0.3, axis=-1), [SEQUENCE]),
    "Split": (lambda n: layers.Split(n, 3), [(5,)]),
    "StopGradient": (layers.StopGradient, [(5,)]),
    "Subtract": (layers.Subtract, [(5,), (5,)]),
    "TimeDistributed": (lambda n: layers.TimeDistributed(n, layers.Dense(f"{n}_each", 2)),
                        [SEQUENCE]),
    "TopIndices": (lambda n: layers.TopIndices(n, 2, 1), [SEQUENCE]),
    "Upsampling2D": (lambda n: layers.Upsampling2D(n, (2, 3), interpolation="bilinear"), [IMAGE]),
    "Weight": (
        lambda n: layers.Weight(n, (2, 3), W_specs={"init": "uniform", "low": -1.0, "high": 1.0}),
        [(5,)],
    ),
    "Where": (lambda n: layers.Where(n, b=-1.0), [(5,), (5,)]),
}  # fmt: skip


def concrete_layers():
    """The names of all layers that can stand in a net."""
    found = {name: getattr(layers, name) for name in layers.__all__}
    return {
        name
        for name, kind in found.items()
        if isinstance(kind, type)
        and issubclass(kind, layers.Layer)
        and kind is not layers.Layer
        and kind.__name__ == name  # else a second name
    }


def net_of(name, **given):
    """A net of that layer alone, behind one input for each of its own."""
    make, shapes = CATALOGUE[name]
    inputs = [Input(f"in{k}", shape) for k, shape in enumerate(shapes)]
    outputs = make("it")(*inputs)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    return FeedForwardNet(inputs=inputs, outputs=outputs, seed=1, **given)


def inputs_of(name, count=3):
    """A batch for `net_of`: whole numbers where they are indices."""
    rng = np.random.default_rng(5)
    kinds = getattr(layers, name).traits.input_kinds
    return {
        f"in{k}": (
            rng.integers(0, 7, (count, *shape))
            if kinds[k : k + 1] == ("integers",)
            else rng.standard_normal((count, *shape)).astype(np.float32)
        )
        for k, shape in enumerate(CATALOGUE[name][1])
    }
