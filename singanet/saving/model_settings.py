"""The compiled settings of a net as data and arrays, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from singanet.checkpoint.entry import Source, sources_of
from singanet.engine.net import Net
from singanet.errors import ConfigError
from singanet.metric import Metric
from singanet.optimizer import MixedPrecision, Optimizer, Wrapper
from singanet.optimizer.sources import state_sources
from singanet.optimizer.wrapper import rule_of
from singanet.saving.model_layout import FIT, OPTIMIZER, PRECISION
from singanet.saving.nets import distinct_params
from singanet.saving.objects import (
    kind_of,
    mapping_at,
    object_from_config,
    object_to_config,
    refusing,
    spec_from_config,
    spec_to_config,
    wrong,
)
from singanet.training.compiled import Compiled, compile_net, expect_compiled, expect_weighing
from singanet.types import Array

MOST_FITS = 256
"""Kinds of clipping and accumulation that one optimizer is described with."""


def describe(net: Net, compiled: Compiled) -> dict[str, Any]:
    """Optimizer, metrics and mixed precision as JSON types, and how many epochs were begun.

    Errors: `ConfigError` for an optimizer or metric that cannot be described.
    """
    if len(compiled.around) > MOST_FITS:
        raise ConfigError(
            "the training",
            expected=f"at most {MOST_FITS} kinds of clipping and accumulation",
            received=f"{len(compiled.around)}",
            advice="compile the net anew, or leave the training out with training=False",
        )
    try:
        return {
            "optimizer": object_to_config(compiled.optimizer),
            "metrics": {name: object_to_config(m) for name, m in compiled.metrics.items()},
            "outputs": compiled.outputs,
            "weighted": sorted(compiled.weighted),
            "precision": None
            if compiled.precision is None
            else object_to_config(compiled.precision),
            "epochs": compiled.epochs,
            "fit": [list(key) for key in compiled.around],
            "registered": _registered(net, rule_of(compiled.optimizer)),
        }
    except ConfigError as error:
        raise ConfigError(
            error.where,
            expected=error.expected,
            received=error.received,
            advice=f"{error.advice}; or leave the training out with training=False",
        ) from error


def _registered(net: Net, rule: Any) -> dict[str, Any]:
    """The specs that were registered with the ``rule`` and override the parameters' own."""
    if not isinstance(rule, Optimizer):
        return {}
    pairs = [(param, rule.spec_of(param)) for param in distinct_params(net.nodes())]
    return {param.name: spec_to_config(spec) for param, spec in pairs if spec != param.spec}


def sources(compiled: Compiled) -> list[Source]:
    """What optimizer and mixed precision have gathered, by their names in the file."""
    state = state_sources(compiled.optimizer)
    names = {source.name for source in state}
    found = [replace(source, name=OPTIMIZER + source.name) for source in state]
    for number, wrapper in enumerate(compiled.around.values()):
        own = [source for source in state_sources(wrapper) if source.name not in names]
        found += [replace(source, name=f"{FIT}{number}/{source.name}") for source in own]
    if compiled.precision is not None:
        learnt = sources_of(compiled.precision.state_dict(), "the training")
        found += [replace(source, name=PRECISION + source.name) for source in learnt]
    return found


def compile_as(net: Net, described: Any, states: Callable[[str], dict[str, Array]]) -> None:
    """Compile ``net`` as `describe` says, and let the optimizer go on from its state.

    ``states`` gives the arrays of the file whose names begin with a prefix, without it.
    Errors: `ConfigError` and `UnknownNameError` for what cannot be built, and those of
    `load_state_dict` for a state that is not the optimizer's.
    """
    if not isinstance(described, Mapping) or not isinstance(described.get("metrics"), Mapping):
        raise wrong("the training", "an object with optimizer and metrics", repr(described))
    fits = described.get("fit", ())
    if not isinstance(fits, (list, tuple)) or len(fits) > MOST_FITS:
        raise wrong("the training", f"a list of at most {MOST_FITS} under 'fit'", kind_of(fits))
    epochs = described.get("epochs")
    if type(epochs) is not int or epochs < 0:
        raise wrong("the training", "a count under 'epochs'", repr(epochs))
    with refusing("the training"):
        optimizer = object_from_config(described.get("optimizer"), {}, Optimizer, Wrapper)
        metrics = {
            name: object_from_config(entry, {}, Metric)
            for name, entry in described["metrics"].items()
        }
        precision = described.get("precision")
        if precision is not None:
            precision = object_from_config(precision, {}, MixedPrecision)
        measure = net.metric
        outputs = described.get("outputs", {})
        compile_net(net, optimizer, None, _by_output(metrics, outputs), precision)
        net.metric = _same(measure, metrics.values())
        for name, entry in mapping_at("the training", described, "registered").items():
            optimizer.register(name, spec_from_config(name, entry))
        state = states(OPTIMIZER)
        optimizer.load_state_dict(state)
        if precision is not None:
            precision.load_state_dict(states(PRECISION))
        compiled = expect_compiled(net, "the training")
        compiled.epochs, compiled.weighted = epochs, _weighted(compiled, described)
        for number, (clip, clip_by, accumulate) in enumerate(fits):
            own = states(f"{FIT}{number}/")
            compiled.clipped(clip, clip_by, accumulate).load_state_dict({**state, **own})


def _weighted(compiled: Compiled, described: Mapping[str, Any]) -> frozenset[str]:
    """The metrics that get weights. Errors: others than there are, or some that take none."""
    names = described.get("weighted", ())
    known = isinstance(names, (list, tuple)) and {*map(str, names)} <= compiled.metrics.keys()
    if not known:
        raise wrong("the training", "names of metrics under 'weighted'", repr(names))
    for name in names:
        expect_weighing(compiled.metrics[name])
    return frozenset(names)


def _by_output(metrics: Mapping[str, Metric], outputs: Any) -> Mapping[str, Any]:
    """``metrics`` as `compile` takes them; ``outputs`` has the output that each one sees."""
    if not isinstance(outputs, Mapping) or not set(outputs) <= set(metrics):
        raise wrong("the training", "the outputs of metrics by their names", repr(outputs))
    if not outputs:
        return metrics
    found: dict[str, dict[str, Metric]] = {}
    for name, metric in metrics.items():
        output = str(outputs.get(name))
        found.setdefault(output, {})[name.removeprefix(f"{output}_")] = metric
    return found


def _same(metric: Metric | None, others: Iterable[Metric]) -> Metric | None:
    """The metric of ``others`` with the description of ``metric``: both are often one object."""
    if metric is None:
        return None
    config = object_to_config(metric)
    return next((each for each in others if object_to_config(each) == config), metric)
