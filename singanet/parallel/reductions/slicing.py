"""Bringing the large parameters of a net into slices on several ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from singanet.engine.executor import LayerByLayer
from singanet.engine.net import Net, expect_host
from singanet.errors import ArgumentError
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.communicators.communicator import Communicator
from singanet.parallel.reductions.cut import Cut
from singanet.parallel.reductions.registration import expect_alike
from singanet.parallel.slices.executor import Gathered
from singanet.parallel.slices.gathers import Gathers
from singanet.parallel.slices.storage import Slices
from singanet.params.param import Param


def params_of(net: Net) -> list[Param]:
    """The parameters of ``net``, whether they have values or not."""
    params = [p for step in net.planned().steps for p in step.layer.params.values()]
    return list({id(param): param for param in params}.values())


def expect_whole_net(net: Any) -> None:
    """Errors: `ArgumentError` for a part of a net."""
    if not isinstance(net, Net):
        raise ArgumentError(
            "Sharded(level=3)",
            expected="a whole net, whose passes all ranks make together",
            received=f"a part of one, {type(net).__name__}: of a pipeline, or of an Executor",
            advice="use level=2",
        )


def cut_net(
    net: Net, comm: Communicator, cut: Cut, chain: UpdateChain, around: Sequence[Wrapper]
) -> None:
    """Have slices of what ``net`` has large, cut as ``cut`` has it for the rule of ``chain``.

    All ranks call it. Whole is one parameter at a time, also of those that have no values yet. The
    values of rank 0 become those of all. Errors: `ArgumentError` for a net, or stages ``around``,
    that have no part in it; `RankError` where ranks have other parameters.
    """
    params = params_of(net)
    large = [
        param
        for param in params
        if param.storage.in_memory
        and not param.is_state
        and param.shape
        and param.nbytes > cut.smallest
    ]
    if not large:
        return
    _expect_cuttable(net, comm, around)
    facts = [f"{p.name} {p.shape} {p.array_type} {p.trainable}" for p in params]
    expect_alike(comm, facts, False)
    executor: Any = net.executor
    if not isinstance(executor, Gathered):
        executor = Gathered(Gathers(comm), net.executor)
    if chain.own_rule is not None:
        chain.own_rule.follow(params)
    trained = [param for param in large if param.trainable]
    planned = cut.planned(trained, chain, comm.size)
    for param in large:
        rows = planned.get(param.name) or _evenly(param, comm.size)
        _slice(net, param, executor.gathers, rows, comm)
    net.executor = executor


def follow_cut(params: Iterable[Param], planned: Mapping[str, Sequence[int]]) -> None:
    """Let ``params`` in slices be cut as ``planned``; all ranks call it."""
    for param in params:
        storage = param.storage
        if isinstance(storage, Slices) and storage.rows != planned[param.name]:
            whole = storage.read()
            param.storage = Slices(storage.gathers, param.name, whole, planned[param.name])


def listen(net: Any) -> None:
    """Say that this rank has no more batches for ``net``. Errors: `RankError` if others have."""
    if net is not None and isinstance(net.executor, Gathered):
        net.executor.gathers.listen()


def _slice(
    net: Net, param: Param, gathers: Gathers, rows: Sequence[int], comm: Communicator
) -> None:
    if param.filled:
        whole = np.array(param.value, order="C")
    else:
        param.seed, param.dtype = net.seed, net.dtype
        whole = np.ascontiguousarray(net.first_value(param))
    whole = comm.broadcast(whole, 0, f"the value of {param.name}")
    param.storage = Slices(gathers, param.name, whole, rows)


def _evenly(param: Param, size: int) -> list[int]:
    rows = param.shape[0] if param.shape else 1
    return [rows * rank // size for rank in range(size + 1)]


def _expect_cuttable(net: Net, comm: Communicator, around: Sequence[Wrapper]) -> None:
    where = "Sharded(level=3)"
    expect_host(net, where)
    executor = net.executor
    known = executor.can.records or type(executor) in (LayerByLayer, Gathered)
    received, advice = "", "use level=2"
    if executor.placed is not None or not known:
        received = f"one that {executor.can.is_so}"
    elif elsewhere := [p for p in params_of(net) if _is_elsewhere(p)]:
        received = f"one whose {elsewhere[0].name!r} is {elsewhere[0].storage.place}"
    elif any(stage.holds_all for stage in around):
        received = "one in mixed precision, whose float32 masters are whole"
    elif comm.elastic:
        received = "ranks that may die, each with slices that nobody else has"
        advice = "start the job without --elastic, or use level=2"
    if received:
        raise ArgumentError(
            where,
            expected="a net in memory, to be cut over ranks that stay",
            received=received,
            advice=advice,
        )


def _is_elsewhere(param: Param) -> bool:
    """Whether its array is neither in memory as it is, nor cut, nor kept by a table."""
    storage = param.storage
    return not (storage.in_memory or storage.sliced or storage.by_rows)
