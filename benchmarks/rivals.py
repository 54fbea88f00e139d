"""The rivals of the comparisons with PyTorch, a step or a prediction of each."""

from __future__ import annotations

import os
from typing import Any

from apart import Entrant, NoEntryError
from cases import CASES, Case, batch_of, build, parameters, predictor
from versus import COMPILED, PRECISION

LR, MOMENTUM = 0.01, 0.9


def imports(name: str, row: int, compile_all: bool = False) -> None:
    """Load what the rival needs, unless it does not take part in the row."""
    if name == "singanet":
        import singanet.models
        import singanet.optimizer
        import singanet.saving.predictor
        import singanet.training.evaluation  # noqa: F401

        return
    case = CASES[row]
    x, _ = batch_of(case.model, 1)
    images = not isinstance(x, dict) and x.ndim == 4
    if name.startswith("channels-last") and not images:
        raise NoEntryError("not tried")
    if name == "compiled" and not compile_all and case.model not in COMPILED:
        raise NoEntryError("not tried")
    import torch  # noqa: F401
    import twins  # noqa: F401


def _compute(net: Any, precision: str) -> None:
    """Have ``net`` compute as `compile` would by that ``mixed_precision``."""
    if precision == "bfloat16":
        net._run_on(net.device._narrowed("benchmarks"), net.dtype)
    else:
        net.as_type(precision)


def our_step(row: int) -> Entrant:
    """A training step of singanet."""
    import singanet

    case = CASES[row]
    net, (x, y) = build(case.model), batch_of(case.model, case.batch)
    _compute(net, os.environ[PRECISION])
    sgd = singanet.optimizer.SGD(lr=LR, momentum=MOMENTUM)
    return Entrant(lambda: net.step(x, y, sgd), {"parameters": parameters(net)})


def our_prediction(row: int) -> Entrant:
    """A prediction of singanet, its weights constants as those of PyTorch's compiled twin."""
    case = CASES[row]
    net, (x, _) = build(case.model), batch_of(case.model, case.batch)
    _compute(net, os.environ[PRECISION])
    predict = predictor(net)
    return Entrant(lambda: predict(x), {"parameters": parameters(net)})


def their_step(form: str, row: int) -> Entrant:
    """A training step of PyTorch; the loss is read, as singanet's step returns it."""
    import torch
    from torch.nn.functional import cross_entropy

    net, inputs, labels, facts = _twin(form, CASES[row])
    # Of the three forms of PyTorch's SGD the fused one is the fastest on every row.
    sgd = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM, fused=True)
    run = torch.compile(net) if form == "compiled" else net

    def step() -> float:
        sgd.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=form.endswith("autocast")):
            loss = cross_entropy(run(*inputs).flatten(0, -2), labels)
        loss.backward()
        sgd.step()
        return loss.item()

    return Entrant(step, facts)


def their_prediction(form: str, row: int) -> Entrant:
    """A prediction of PyTorch; compiled with its weights as constants, which is fastest."""
    import torch

    net, inputs, _, facts = _twin(form, CASES[row])
    net.eval()
    if form == "compiled":
        import torch._inductor.config

        torch._inductor.config.freezing = True
    run = torch.compile(net) if form == "compiled" else net

    def predict() -> torch.Tensor:
        narrow = torch.autocast("cpu", torch.bfloat16, enabled=form.endswith("autocast"))
        with torch.inference_mode(), narrow:
            return run(*inputs).softmax(-1)

    return Entrant(predict, facts)


def _twin(form: str, case: Case) -> tuple[Any, list, Any, dict]:
    """The net in PyTorch, its inputs and labels, and its number of parameters."""
    import torch
    import twins

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    net, (x, y) = twins.build(case.model), batch_of(case.model, case.batch)
    inputs = [torch.from_numpy(a) for a in (x.values() if isinstance(x, dict) else [x])]
    if inputs[0].ndim == 4 and not form.startswith("NCHW"):
        net = net.to(memory_format=torch.channels_last)
        inputs = [a.contiguous(memory_format=torch.channels_last) for a in inputs]
    facts = {"parameters": sum(p.numel() for p in net.parameters())}
    return net, inputs, torch.from_numpy(y).flatten(), facts
