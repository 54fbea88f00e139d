"""How far a loaded net is from its model in transformers: outputs and all gradients."""

import numpy as np

from singanet.pretrained.families import FAMILIES
from singanet.types import RowSparse
from tests.pretrained.peers import batch, queries_for, theirs, torch


def named_gradients(net, dy):
    """The gradients of all arrays of the files, under the names and in the shapes there."""
    grads = {}
    for names, _, layer_grads in net.backward(dy):
        grads.update(zip(names, layer_grads, strict=True))

    def of(param):
        grad = grads[param.name]
        if not isinstance(grad, RowSparse):
            return np.asarray(grad)
        whole = np.zeros(param.shape, grad.rows.dtype)
        whole[grad.indices] = grad.rows
        return whole

    arrays = net.origin.arrays.items()
    trained = {n: a for n, a in arrays if all(param.trainable for param, _ in a.members)}
    return {name: stored.whole(of) for name, stored in trained.items()}


def named(model, names):
    """``names`` by what the family calls them, whatever the version of transformers does."""
    return FAMILIES[model.config.model_type].canonical(names)


def _seen(x, y):
    """1 for outputs that count: those of padding are anything."""
    if "attention_mask" not in x or y.ndim < 3 or "decoder_input_ids" in x:
        return np.float32(1)
    return x["attention_mask"][..., None].astype(np.float32)


def apart(net, model, **of_batch):
    """The largest differences relative to the largest values: of outputs, and of each gradient.

    ``of_batch`` are arguments of `batch`.
    """
    x = batch(net, **of_batch)
    y = net.forward(True, x)
    found = y if isinstance(y, dict) else dict.fromkeys(net._execution_plan().outputs, y)
    rng = np.random.default_rng(1)
    dy = {n: rng.standard_normal(y.shape, np.float32) * _seen(x, y) for n, y in found.items()}
    ours = named_gradients(net, dy if isinstance(y, dict) else next(iter(dy.values())))
    wanted, grads = theirs(model, x, dy)
    outputs = [
        abs((y - wanted[name]) * _seen(x, y)).max() / abs(wanted[name]).max()
        for name, y in found.items()
    ]
    if any(param.is_state for param in net.params()):
        # Running statistics have changed by the batch, in both alike.
        model.eval()
        after = model(torch.from_numpy(x["pixel_values"]))[0].detach().numpy()
        outputs.append(abs(net.forward(False, x) - after).max() / abs(after).max())
    grads = {canonical: grads[name] for canonical, name in named(model, grads).items()}
    names = named(model, ours)
    assert grads.keys() == names.keys()
    gradients = {}
    for canonical, name in names.items():
        grad = grads[canonical]
        # A bias of keys has no gradient but for rounding: it is as small beside that of queries.
        queries = grads[queries_for(canonical)]
        largest = max(abs(grad).max(), abs(queries).max() if canonical.endswith("bias") else 0.0)
        difference = abs(ours[name] - grad.reshape(ours[name].shape)).max()
        gradients[name] = difference / largest if largest else float(difference > 0)
    return max(outputs), gradients
