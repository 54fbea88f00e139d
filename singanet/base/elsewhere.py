"""Advice for names of other libraries, and lazy imports of public names."""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Callable, Collection
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from singanet.base.tracebacks import entry_point
from singanet.base.words import aliases
from singanet.errors import UnknownNameError, brief, did_you_mean

_CALLED = {
    "batch_input_shape": ("input_shape",),
    "bsp": ("consistency",),
    "corr": ("error_feedback",),
    "ctx": ("device",),
    "decay": ("weight_decay",),
    "eos_token_id": ("stop",),
    "eval_node_list": ("outputs",),
    "feed_dict": ("feed",),
    "in_channels": ("input_shape",),
    "in_features": ("input_shape",),
    "input_dim": ("input_shape",),
    "grad_ys": ("dys",),
    "insert_grad": ("dys",),
    "input_ids": ("prompts",),
    "max_new_tokens": ("length",),
    "max_tokens": ("length",),
    "var_list": ("params",),
}
"""Names elsewhere, and what a class may call it here."""

_INSTEAD = {
    "activation": "put Activation('relu1', 'relu') after it, as a layer of its own",
    "affine": "pass center=False, scale=False",
    "amsgrad": "leave it out: Adam and AdamW take it",
    "attention_mask": "leave it out, and give prompts of different lengths as a list",
    "batch_first": "leave it out: the batch is axis 0 everywhere",
    "bias_initializer": "pass b_specs={'init': 'constant', 'value': 0.1}",
    "bsp": "pass it to the optimizer: ParameterServer(sgd, consistency='bsp'), 'asp' or 'ssp'",
    "cache_bound": "pass it to the table: Embedding(..., cache=Cache('lfu', pull_bound=100,"
    " push_bound=100))",
    "clipnorm": "pass constraint=ClipNorm(...), or clip= to net.fit",
    "clipvalue": "pass clip=..., clip_by='value' to net.fit",
    "comm_mode": "pass parallel=singanet.parallel.init() to reduce gradients; or minimize by"
    " singanet.parallel.ParameterServer(sgd) or Hybrid(sgd)",
    "convert_to_numpy_ret_vals": "leave it out: values are arrays and floats",
    "cstable_policy": "pass it to the table: Embedding(..., cache=Cache('lfu'))",
    "ctx": "leave it out, and move the net with net.to_device",
    "device": "leave it out, and move the net with net.to_device",
    "do_sample": "pass temperature=0 for the likeliest id, temperature=1.0 to draw",
    "dtype": "leave it out, and convert the net with net.as_type",
    "embeddings_initializer": "pass W_specs={'init': 'gaussian', 'mean': 0, 'std': 0.05}",
    "enable_lazy": "leave it out: shapes are known before the first run",
    "filepath": "give the folder for the files as the first argument",
    "freeze": "call net.freeze(layer) before; net.unfreeze() undoes it",
    "from_logits": "leave it out: SoftmaxCrossEntropy and SigmoidCrossEntropy take scores,"
    " CategoricalCrossEntropy and BinaryCrossEntropy probabilities",
    "global_clipnorm": "pass clip=..., clip_by='global' to net.fit",
    "inplace": "leave it out: layers never change their input",
    "is_train": "leave it out: net.forward(False, x) is evaluation, net.forward(True, x) training",
    "jit_compile": "leave it out: steps are recorded automatically",
    "kernel_initializer": "pass W_specs={'init': 'he_normal'}",
    "kernel_regularizer": "pass W_specs={'regularizer': 2e-4}, the factor of w in the gradient",
    "loss_weights": "pass it to the loss: loss=MultiLoss({'a': ..., 'b': ...}, weights={'a': 2.0})",
    "learning_rate": "pass it to the optimizer: SGD(learning_rate=0.1)",
    "lr": "pass it to the optimizer: SGD(learning_rate=0.1)",
    "metrics": "pass them to net.compile",
    "num_return_sequences": "repeat the prompt: [prompt] * 3",
    "optimizer": "pass it to net.compile",
    "pad_token_id": "leave it out, and give prompts of different lengths as a list",
    "padding": "put Pad before it",
    "params": "leave it out: net.fit, net.step and update pass the parameters",
    "recurrent_dropout": "leave it out; dropout= drops between the stacks",
    "bad_words_ids": "it is called bad_words here",
    "logits_processor": "pass a function of ids and scores as logits",
    "stop_strings": "pass the texts as stop",
    "return_dict": "leave it out: .logs of evaluate's result is a dict",
    "return_tensors": "leave it out: ids are NumPy's arrays",
    "run_eagerly": "leave it out; net.programs.enabled = False runs layer after layer",
    "save_best_only": "leave it out: best.npz has the best epoch alone, by monitor=; keep= limits"
    " the number of epochs",
    "save_weights_only": "leave it out: best.npz has only the weights",
    "sequential": "leave it out: recorded steps run in the order of recording",
    "skip_special_tokens": "leave it out: tokenizer.decode converts the returned ids to text",
    "spars": "pass ratio=, the fraction of elements that is sent, as with topK=True, or threshold=,"
    " the magnitude from which on they are sent, as with topK=False",
    "topK": "leave it out: ratio= sends the largest, as topK=True, threshold= those from it on",
    "trainable": "assign layer.trainable = False",
    "use_cache": "leave it out: the net caches earlier steps",
    "use_graph": "leave it out: steps are recorded automatically; net.programs.enabled = False"
    " turns it off",
    "use_multiprocessing": "leave it out; singanet.data.Prefetch reads ahead",
    "use_sparse_pull": "leave it out: only the rows that a batch names are pulled",
    "verbose": "leave it out: nothing is printed",
    "weights": "assign layer.params['weight'].value, or use net.load",
    "workers": "leave it out; singanet.data.Prefetch reads ahead",
}
"""Names elsewhere of what no class takes here."""

_NAMES = {
    "AdamWScheduleFree": "ScheduleFreeAdamW",
    "AveragePooling": "AvgPooling",
    "AvgPool": "AvgPooling",
    "BCELoss": "BinaryCrossEntropy",
    "BCEWithLogitsLoss": "SigmoidCrossEntropy",
    "BatchNorm": "BatchNormalization",
    "BinaryCrossentropy": "SigmoidCrossEntropy of scores, or BinaryCrossEntropy of probabilities",
    "CELU": "Activation('name', 'celu')",
    "CTCLoss": "CTC",
    "CategoricalCrossentropy": "SoftmaxCrossEntropy of scores, or CategoricalCrossEntropy of"
    " probabilities",
    "CircularPad": "Pad(mode='circular')",
    "Concatenate": "Concat",
    "ConstantPad": "Pad",
    "Conv1d": "Conv1D",
    "Conv2d": "Conv2D",
    "Conv3d": "Conv3D",
    "CrossEntropyLoss": "SoftmaxCrossEntropy",
    "DataLoader": "ArrayLoader",
    "Dropout1d": "SpatialDropout",
    "Dropout2d": "SpatialDropout",
    "Dropout3d": "SpatialDropout",
    "ELU": "Activation('name', 'elu')",
    "F1Score": "F1",
    "GELU": "Activation('name', 'gelu')",
    "GlobalAveragePooling": "GlobalAvgPooling",
    "Hardsigmoid": "Activation('name', 'hard_sigmoid')",
    "Hardswish": "Activation('name', 'hard_swish')",
    "Hardtanh": "Clip",
    "HuberLoss": "Huber",
    "Identity": "Dummy",
    "KLDivLoss": "KLDivergence",
    "L1Loss": "MeanAbsoluteError",
    "LayerNormalization": "LayerNorm",
    "LeakyReLU": "Activation('name', 'leaky_relu')",
    "LearningRateScheduler": "LearningRate",
    "Linear": "Dense",
    "LocalResponseNorm": "LRN, whose alpha is theirs over the size",
    "MAE": "MeanAbsoluteError",
    "MSE": "MeanSquaredError",
    "MSELoss": "MeanSquaredError",
    "MaxPool": "MaxPooling",
    "Mish": "Activation('name', 'mish')",
    "Module": "Layer",
    "MultiheadAttention": "MultiHeadAttention",
    "NLLLoss": "CategoricalCrossEntropy, of probabilities",
    "Nadam": "NAdam",
    "RMSNormalization": "RMSNorm",
    "RMSprop": "RMSProp",
    "ReLU": "Activation('name', 'relu')",
    "ReduceLROnPlateau": "ReduceOnPlateau",
    "ReflectionPad": "Pad(mode='reflect')",
    "ReplicationPad": "Pad(mode='replicate')",
    "Rescaling": "Scale",
    "SELU": "Activation('name', 'selu')",
    "Model": "singanet.FeedForwardNet(inputs=..., outputs=...)",
    "Sequential": "singanet.FeedForwardNet([layer, ...])",
    "SiLU": "Activation('name', 'silu')",
    "Sigmoid": "Activation('name', 'sigmoid')",
    "SmoothL1Loss": "SmoothL1",
    "Softplus": "Activation('name', 'softplus')",
    "Softsign": "Activation('name', 'softsign')",
    "SparseCategoricalCrossentropy": "SoftmaxCrossEntropy of scores, or CategoricalCrossEntropy of"
    " probabilities",
    "SyncBatchNorm": "BatchNormalization",
    "Tanh": "Activation('name', 'tanh')",
    "TerminateOnNaN": "StopOnNaN",
    "Unflatten": "Reshape",
    "UpSampling": "Upsampling",
    "ZeroPad": "Pad",
    "ZeroPadding": "Pad",
}
"""Classes elsewhere, and what takes their place here; how many axes they have may stand behind."""

_RECORDED = _INSTEAD["use_graph"]
_TIMES = "program = net.record(x, y, optimizer); program.run(x, y, timed=True), then print"
_TIMES += " program.report().table(2)"

_OF_DEVICES = {
    "EnableGraph": _RECORDED,
    "PrintTimeProfiling": _TIMES,
    "ResetGraph": _RECORDED,
    "RunGraph": _RECORDED,
    "SetSkipIteration": _TIMES,
    "SetVerbosity": _TIMES,
    "Sync": "leave it out: a value is computed by the time it is read",
}

_GONE = {
    **_OF_DEVICES,
    "CaffeConverter": "convert the net to ONNX, and load it with singanet.onnx.load(path)",
    "DistOpt": "write singanet.parallel.AllReduce(sgd), or SparseAllReduce(sgd, ratio=0.05),"
    " PartialUpdate(sgd), AllReduce(sgd, dtype='float16')",
    "HetuConfig": "leave it out: Executor takes device= and parallel=, an Embedding its cache=",
    "Snapshot": "use net.save(path) and net.load(path), or write_state and open_state",
    "Tensor": "leave it out: arrays are NumPy's or CuPy's",
    "Variable": "write Input(name, sample_shape) for inputs; parameters belong to layers",
    "autograd": "leave it out: net.step trains, net.gradients(ys, xs, x) are gradients of anything",
    "create_cpu_device": "write singanet.device.cpu()",
    "create_cuda_gpu": "write singanet.device.cuda(0)",
    "create_cuda_gpu_on": "write singanet.device.cuda(index)",
    "dataloader_op": "write singanet.executor.from_loader(loader)",
    "gpu": "write singanet.device.cuda(index)",
    "opt": "it is singanet.optimizer",
    "scheduler_init": "leave it out: singanet launch --servers 1 script.py starts all processes",
    "server_init": "leave it out: singanet launch --servers 1 script.py starts the servers",
    "snapshot": "use net.save(path) and net.load(path); of arrays without a net"
    " singanet.checkpoint.write_state and open_state",
    "sonnx": "use singanet.onnx.load(path) and singanet.onnx.save(net, path)",
    "tensor": "leave it out: arrays are NumPy's or CuPy's, which numpy.asarray makes",
    "worker_finish": "leave it out: a process that singanet launch started ends with its script",
    "worker_init": "leave it out: singanet launch -n 2 --servers 1 script.py starts all processes",
}
"""Functions and modules elsewhere that have no counterpart of one name, and what to do here."""

_MODES = "net.forward(False, x) is evaluation, net.forward(True, x) is training"
_ZERO_GRAD = "leave it out: gradients are freed after each update"
_SENT = "wrap it once, then call net.step(x, y, optimizer): singanet.parallel."

_ATTRIBUTES = {
    "Dataset": {
        f"{letter}_{part}": f"it is {letter.lower()}_{part} here"
        for letter in "XY"
        for part in ("train", "test")
    },
    "Device": _OF_DEVICES,
    "Executor": {
        "batch_num": "call executor.batches(name)",
        "comm_mode": "look at the argument parallel=, or the optimizer of minimize",
        "eval_node_list": "pass run(name, feed, outputs), or name a program of these outputs",
        "get_batch_num": "call executor.batches(name)",
        "param_nodes": "executor.net.params() lists the parameters",
        "subexecutor": "executor.programs lists the programs, executor.run(name, feed) runs one",
        "topo_order": "executor.net.layers are in topological order",
    },
    "FeedForwardNet": {
        "count_params": "net.summary() counts, sum(v.size for v in net.param_values()) too",
        "dst_of_layer": "write [n.name for n in net.nodes() for source, _ in n.inputs if"
        " source.name == 'conv1']",
        "eval": _MODES,
        "get_layer": "write net['name']",
        "get_params": "{p.name: p.value for p in net.params()} are they",
        "get_weights": "net.param_values() are the arrays, net.param_names() their names",
        "graph": _RECORDED,
        "history": "net.fit returns it: history = net.fit(x, y)",
        "load_state_dict": "net.load(path) reads them from a file",
        "load_model": "singanet.load_model(path) makes the net of a file, net.load(path) reads"
        " weights",
        "load_states": "net.load(path) reads them",
        "load_weights": "net.load(path) reads them",
        "optimizer": "keep the optimizer that you pass to net.compile(optimizer, loss)",
        "ordered_layers": "net.layers are in topological order",
        "parameters": "net.params() lists them",
        "save_states": "net.save(path) writes them",
        "save_weights": "net.save(path) writes them",
        "set_weights": "net.set_params({name: array}) copies them in, and"
        " {p.name: p.value for p in other.params()} are another net's",
        "src_of_layer": "write {n.name: [source.name for source, _ in n.inputs] for n in"
        " net.nodes()}",
        "state_dict": "net.save(path) writes them, {p.name: p.value for p in net.params()} are"
        " they",
        "to": "net.to_device(device) moves the net, net.as_type(type) converts it",
        "topo_sort": "net.ordered() is sorted, net.layers too",
        "train_one_batch": "call net.step(x, y, optimizer), or net.train(x, y) for the gradients",
        "trainable_weights": "net.params() lists them; param.trainable is the flag",
        "verbose": "leave it out: nothing is printed; net.summary() is a table, callbacks look on",
        "weights": "net.params() lists them",
        "zero_grad": _ZERO_GRAD,
    },
    "History": {
        "epoch": "the numbers are history.epochs",
        "history": "it is the dict itself: history['loss']",
        **{
            name: f"write history[{name!r}]"
            for name in ("loss", "accuracy", "val_loss", "val_accuracy", "lr")
        },
    },
    "Optimizer": {
        "backward_and_partial_update": f"{_SENT}PartialUpdate(sgd)",
        "backward_and_sparse_update": f"{_SENT}SparseAllReduce(sgd, ratio=0.05)",
        "backward_and_update": f"{_SENT}AllReduce(sgd)",
        "backward_and_update_half": f"{_SENT}AllReduce(sgd, dtype='float16')",
        "step": "call net.step(x, y, optimizer), which computes gradients and updates the net",
        "zero_grad": _ZERO_GRAD,
    },
    "Reducer": {
        "corr": "SparseAllReduce and PowerSGD have it, as error_feedback",
        "error_feedback": "SparseAllReduce and PowerSGD have it, others send all",
        "global_rank": "it is optimizer.comm.rank",
        "learning_rate": "the rule has it: optimizer.optimizer.learning_rate",
        "local_rank": "the launcher's variables have it; optimizer.comm.rank counts all processes",
        "spars": "it is ratio, or threshold, of SparseAllReduce",
        "world_size": "it is optimizer.comm.size",
    },
}
"""By class: attributes elsewhere, and what to do here."""
_ATTRIBUTES["Wrapper"] = _ATTRIBUTES["Optimizer"]


def advice_on(unknown: str, names: Collection[str]) -> str:
    """Return advice on the unknown argument ``unknown`` of a constructor that has ``names``."""
    for here in (aliases(tuple(names)).get(unknown, ""), *_CALLED.get(unknown, ())):
        if here in names:
            return f"it is called {here} here"
    return _INSTEAD.get(unknown) or did_you_mean(unknown, names, "leave it out")


def advice_on_none(called: str) -> str:
    """Return advice on a call without arguments that another library has; "" for none."""
    return f"leave it out: {_MODES}" if called == "net.train" else ""


class NoAttributeError(UnknownNameError, AttributeError):
    """An unknown attribute, also for `hasattr`; the message has its name in this library."""


class NoEntryError(UnknownNameError, KeyError):
    """A missing entry of a dict; a user's own code may look for a KeyError."""

    __str__ = Exception.__str__


class NoNameError(UnknownNameError, ImportError):
    """An unknown name in an import; the message has its name in this library."""


_ROOMS = ("layers", "loss", "metric", "optimizer", "training.callbacks", "data", "initializer")
"""The rooms whose classes are looked for by the name of the package or of another room."""


def names_of(
    room: str, names: Collection[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module ``room`` with the public ``names``."""

    @entry_point
    def missing(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        stem = name.rstrip("dD").rstrip("0123456789")
        here = _NAMES.get(name) or _NAMES.get(stem)
        if (
            here is not None
            and name not in _NAMES
            and f"{here}{name[len(stem) :].upper()}" in names
        ):
            here += name[len(stem) :].upper()
        home = _home_of(here or name) if here not in names else None
        near = did_you_mean(name, names, "")
        instead = _GONE.get(name) or near or "see its __all__"
        known = (here or home) is not None or name in _GONE
        error: type[UnknownNameError] = NoAttributeError
        # After an AttributeError Python looks for a submodule, and then names only the file.
        if (known or near) and _is_imported() and find_spec(f"{room}.{name}") is None:
            error = NoNameError
        raise error(
            room,
            expected=f"a name of {len(names)}, which dir({room}) lists",
            received=brief(name),
            advice=f"it is {home or f'{here} here'}" if here or home else instead,
        )

    return missing, lambda: sorted(names)


def _home_of(name: str) -> str | None:
    """Return the full name of the class ``name`` of another room; None if there is none."""
    for room in _ROOMS if name[:1].isupper() else ():
        if name in import_module(f"singanet.{room}").__all__:
            return f"singanet.{room}.{name}"
    return None


def _is_imported() -> bool:
    """Return whether ``from room import name`` called the module's `__getattr__`."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("singanet.base."):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_handle_fromlist"


@entry_point
def missing_attribute(thing: object, name: str) -> Any:
    """The ``__getattr__`` of a class in `_ATTRIBUTES`."""
    expect_here(thing, name)
    # Raises Python's own error, or the error of a property that has failed.
    return object.__getattribute__(thing, name)


def expect_here(thing: object, name: str) -> None:
    """Raise `NoAttributeError` if another library has ``name`` for an attribute of ``thing``."""
    for kind in type(thing).__mro__:
        if name in _ATTRIBUTES.get(kind.__name__, ()):
            raise NoAttributeError(
                type(thing).__name__,
                expected="an existing attribute",
                received=f".{name}",
                advice=_ATTRIBUTES[kind.__name__][name],
            )


def names_when_asked(
    room: str, names: Collection[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of the package ``room``, with public ``names``.

    The module of each name comes from the package's file: its imports under ``if TYPE_CHECKING:``,
    which editors and type checkers read too. So three of fifty layers import three modules.
    """
    missing, listed = names_of(room, names)

    @entry_point
    def find(name: str) -> Any:
        place = _places(room).get(name)
        if place is None:
            return missing(name)
        # If the place is the room itself, the name is a module.
        module = import_module(f"{room}.{name}" if place == room else place)
        found = module if place == room else getattr(module, name)
        # Cached, so that `__getattr__` is not called again.
        setattr(sys.modules[room], name, found)
        return found

    return find, listed


@cache
def _places(room: str) -> dict[str, str]:
    """Return the module of each name that the package ``room`` imports for type checkers."""
    source = pkgutil.get_data(room, "__init__.py") or b""
    return {
        name.name: node.module
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    }


def is_library(kind: type) -> bool:
    """Return whether the class is singanet's."""
    return kind.__module__.partition(".")[0] == "singanet"


def public_classes(room: Any, base: type) -> dict[str, type]:
    """Return the public names of the package ``room`` that are subclasses of ``base``."""
    found = {name: getattr(room, name) for name in room.__all__}
    # Python 3.10 takes list[int] for an instance of type.
    classes = {name: v for name, v in found.items() if issubclass(type(v), type)}
    return {name: kind for name, kind in classes.items() if issubclass(kind, base)}
