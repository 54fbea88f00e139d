"""What arguments are called in Keras and PyTorch, and what takes their place here."""

from __future__ import annotations

from collections.abc import Collection

from singanet.errors import did_you_mean

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
    "kernel_initializer": "say W_specs={'init': 'he_normal'}",
    "kernel_regularizer": "say W_specs={'regularizer': 2e-4}, the coefficient of w in the gradient",
    "padding": "put Pad before it",
    "params": "leave it out: net.fit, net.step and update hand the parameters over",
    "recurrent_dropout": "leave it out; dropout= drops between the stacks",
    "save_best_only": "leave it out: best.npz holds the best alone, by monitor=; keep= says how"
    " many epochs stay",
    "save_weights_only": "leave it out: best.npz holds the weights alone",
    "trainable": "assign layer.trainable = False",
    "weights": "assign layer.params['weight'].value, or use net.load",
}
"""Names elsewhere of what no class takes here."""


def advice_on(unknown: str, names: Collection[str]) -> str:
    """What to do about the argument ``unknown`` of a constructor that takes ``names``."""
    if unknown == "padding" and "border_mode" in names:
        return "say border_mode='same' or 'valid', or pad=1, as many on either side"
    for here in _CALLED.get(unknown, ()):
        if here in names:
            return f"it is called {here} here"
    return _INSTEAD.get(unknown) or did_you_mean(unknown, names, "leave it out")
