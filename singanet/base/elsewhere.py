"""Names of arguments in Keras and PyTorch, and of those in their place here."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from singanet.errors import UnknownNameError, did_you_mean

_CALLED = {
    "batch_input_shape": ("input_sample_shape",),
    "beta1": ("beta_1",),
    "beta2": ("beta_2",),
    "bias": ("use_bias",),
    "decay": ("weight_decay",),
    "dilation_rate": ("dilation",),
    "eps": ("epsilon",),
    "filters": ("nb_kernels",),
    "in_channels": ("input_sample_shape",),
    "in_features": ("input_sample_shape",),
    "input_dim": ("vocabulary_size", "input_sample_shape"),
    "input_shape": ("input_sample_shape",),
    "k": ("top_k",),
    "kernel_size": ("kernel",),
    "learning_rate": ("lr",),
    "min_lr": ("lowest",),
    "negative_slope": ("alpha",),
    "num_embeddings": ("vocabulary_size",),
    "num_layers": ("num_stacks",),
    "out_channels": ("nb_kernels",),
    "out_features": ("num_output",),
    "output_dim": ("num_output",),
    "padding": ("pad",),
    "pool_size": ("kernel",),
    "rate": ("p",),
    "restore_best_weights": ("restore_best",),
    "shape": ("sample_shape",),
    "stddev": ("std",),
    "strides": ("stride",),
    "units": ("num_output", "hidden_size"),
}
"""Names elsewhere, and what a class may call it here."""

_INSTEAD = {
    "affine": "say center=False, scale=False",
    "activation": "put Activation('relu1', 'relu') after it, as a layer of its own",
    "amsgrad": "use AMSGrad(lr=...)",
    "batch_first": "leave it out: the batch is axis 0 everywhere",
    "bias_initializer": "say b_specs={'init': 'constant', 'value': 0.1}",
    "clipnorm": "pass constraint=ClipNorm(...), or clip= to net.fit",
    "clipvalue": "pass clip=..., clip_by='value' to net.fit",
    "device": "leave it out, and move the net with net.to_device",
    "dtype": "leave it out, and turn the net with net.as_type",
    "embeddings_initializer": "say W_specs={'init': 'gaussian', 'mean': 0, 'std': 0.05}",
    "filepath": "give the folder for the files as the first argument",
    "from_logits": "leave it out: SoftmaxCrossEntropy and SigmoidCrossEntropy take scores,"
    " CategoricalCrossEntropy and BinaryCrossEntropy probabilities",
    "global_clipnorm": "pass clip=..., clip_by='global' to net.fit",
    "inplace": "leave it out: layers never change their input",
    "jit_compile": "leave it out: steps are recorded by themselves",
    "kernel_initializer": "say W_specs={'init': 'he_normal'}",
    "kernel_regularizer": "say W_specs={'regularizer': 2e-4}, the coefficient of w in the gradient",
    "loss_weights": "say it to the loss: loss=MultiLoss({'a': ..., 'b': ...}, weights={'a': 2.0})",
    "padding": "put Pad before it",
    "params": "leave it out: net.fit, net.step and update hand the parameters over",
    "recurrent_dropout": "leave it out; dropout= drops between the stacks",
    "return_dict": "leave it out: .logs of what evaluate returns is a dict",
    "run_eagerly": "leave it out; net.programs.enabled = False runs layer after layer",
    "save_best_only": "leave it out: best.npz holds the best alone, by monitor=; keep= says how"
    " many epochs stay",
    "save_weights_only": "leave it out: best.npz holds the weights alone",
    "trainable": "assign layer.trainable = False",
    "use_multiprocessing": "leave it out; singanet.data.Prefetch reads ahead",
    "verbose": "leave it out: nothing is printed",
    "weights": "assign layer.params['weight'].value, or use net.load",
    "workers": "leave it out; singanet.data.Prefetch reads ahead",
}
"""Names elsewhere of what no class takes here."""

_CAUSAL = ("Conv1D", "DepthwiseConv1D", "SeparableConv1D")
"""Layers that pad before alone, if asked."""

_NAMES = {
    "AvgPool": "AvgPooling",
    "AveragePooling": "AvgPooling",
    "BCELoss": "BinaryCrossEntropy",
    "BCEWithLogitsLoss": "SigmoidCrossEntropy",
    "BatchNorm": "BatchNormalization",
    "BinaryCrossentropy": "SigmoidCrossEntropy of scores, or BinaryCrossEntropy of probabilities",
    "CTCLoss": "CTC",
    "CategoricalCrossentropy": "SoftmaxCrossEntropy of scores, or CategoricalCrossEntropy of"
    " probabilities",
    "Concatenate": "Concat",
    "Conv1d": "Conv1D",
    "Conv2d": "Conv2D",
    "Conv3d": "Conv3D",
    "CrossEntropyLoss": "SoftmaxCrossEntropy",
    "DataLoader": "ArrayLoader",
    "ELU": "Activation('name', 'elu')",
    "F1Score": "F1",
    "GELU": "Activation('name', 'gelu')",
    "GlobalAveragePooling": "GlobalAvgPooling",
    "HuberLoss": "Huber",
    "L1Loss": "MeanAbsoluteError",
    "LayerNormalization": "LayerNorm",
    "LeakyReLU": "Activation('name', 'leaky_relu')",
    "LearningRateScheduler": "LearningRate",
    "Linear": "Dense",
    "MSELoss": "MeanSquaredError",
    "MaxPool": "MaxPooling",
    "MultiheadAttention": "MultiHeadAttention",
    "Nadam": "NAdam",
    "RMSNormalization": "RMSNorm",
    "RMSprop": "RMSProp",
    "ReLU": "Activation('name', 'relu')",
    "ReduceLROnPlateau": "ReduceOnPlateau",
    "Rescaling": "Scale",
    "Sequential": "singanet.FeedForwardNet([layer, ...])",
    "SiLU": "Activation('name', 'silu')",
    "Sigmoid": "Activation('name', 'sigmoid')",
    "SmoothL1Loss": "SmoothL1",
    "SparseCategoricalCrossentropy": "SoftmaxCrossEntropy of scores, or CategoricalCrossEntropy of"
    " probabilities",
    "Tanh": "Activation('name', 'tanh')",
    "TerminateOnNaN": "StopOnNaN",
    "UpSampling": "Upsampling",
    "ZeroPadding": "Pad",
}
"""Classes elsewhere, and what takes their place here; how many axes they have may stand behind."""

OF_NETS = {
    "count_params": "net.summary() counts, sum(v.size for v in net.param_values()) too",
    "eval": "net.forward(False, x) is evaluation, net.forward(True, x) training",
    "get_layer": "write net['name']",
    "get_weights": "net.param_values() are the arrays, net.param_names() their names",
    "load_state_dict": "net.load(path) reads them from a file",
    "load_weights": "net.load(path) reads them",
    "parameters": "net.params() lists them",
    "save_weights": "net.save(path) writes them",
    "set_weights": "assign param.value for each of net.params()",
    "state_dict": "net.save(path) writes them, {p.name: p.value for p in net.params()} are they",
    "to": "net.to_device(device) moves the net, net.as_type(type) turns it",
    "trainable_weights": "net.params() lists them; param.trainable says it",
    "weights": "net.params() lists them",
    "zero_grad": "leave it out: gradients are handed out and gone",
}
OF_HISTORIES = {
    "epoch": "the numbers are history.epochs",
    "history": "it is the dict itself: history['loss']",
}
"""Attributes elsewhere, and what to do here."""


def advice_on(unknown: str, names: Collection[str], kind: str = "") -> str:
    """Advice on the argument ``unknown`` of a constructor that takes ``names``.

    ``kind`` is the class, of which some take more values than others.
    """
    if unknown == "padding" and "border_mode" in names:
        modes = "'same', 'valid' or 'causal'" if kind in _CAUSAL else "'same' or 'valid'"
        return f"say border_mode={modes}, or pad=1, as many on either side"
    for here in _CALLED.get(unknown, ()):
        if here in names:
            return f"it is called {here} here"
    return _INSTEAD.get(unknown) or did_you_mean(unknown, names, "leave it out")


class NoAttributeError(UnknownNameError, AttributeError):
    """An unknown attribute, for `hasattr` too; the message has the name that it has here."""


def names_of(room: str, names: Collection[str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module ``room`` with the public ``names``."""

    def missing(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        stem = name.rstrip("0123456789dD")
        here = _NAMES.get(name) or _NAMES.get(stem)
        if (
            here is not None
            and name not in _NAMES
            and f"{here}{name[len(stem) :].upper()}" in names
        ):
            here += name[len(stem) :].upper()
        instead = f"it is {here} here" if here else did_you_mean(name, names, "see its __all__")
        raise NoAttributeError(
            room,
            expected=f"one of its {len(names)} names, which dir({room}) lists",
            received=repr(name),
            advice=instead,
        )

    return missing


def no_attribute(thing: object, name: str, here: str) -> AttributeError:
    """The error for the attribute ``name`` of ``thing``, which is ``here`` in its place."""
    return NoAttributeError(
        type(thing).__name__,
        expected="an attribute that it has",
        received=f".{name}",
        advice=here,
    )
