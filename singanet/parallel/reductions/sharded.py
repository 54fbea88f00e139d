"""Ranks that each keep and update a part of the parameters' state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.edits import changes
from singanet.checkpoint.entry import Source
from singanet.engine.model import NetCore
from singanet.errors import ArgumentError
from singanet.ops import ops_for
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.sources import state_sources
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.communicators.communicator import Communicator
from singanet.parallel.reductions.all_reduce import AllReduce
from singanet.parallel.reductions.cut import Cut
from singanet.parallel.reductions.sharded_round import ShardedRound
from singanet.parallel.reductions.slicing import (
    cut_net,
    expect_whole_net,
    follow_cut,
    listen,
    params_of,
)
from singanet.params.storage import SMALL
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net


class Sharded(AllReduce):
    """`AllReduce` of which each rank keeps a part of the state (ZeRO, Rajbhandari et al. 2020).

    Each of p ranks updates its rows of every parameter, 1/p of them, and tells the others their
    values while the walk back goes on. ``level`` 1 sums gradients on all ranks; with 2 large ones
    are summed in parts, so that no rank has more of a sum than it updates, and as many bytes are
    sent as by `AllReduce`. With 3 ranks keep no more of large parameters than they update: the net
    runs by the layers, whose values are gathered before forward and backward, a layer ahead, and
    dropped after; all ranks make the same calls of it. Parameters of at most ``smallest`` bytes are
    one rank's each, and so are those whose elements a rule does not treat alike (`LAMB`,
    `Adafactor`, constraints): it sees them whole. A lone rank is the plain rule.

    ``state_dict`` is called by all ranks, and has the whole state on each; any number of ranks
    takes it. Clipping stands inside; a stage of a user's own there has to work `by_element`, or
    `by_parts`.
    """

    in_parts = True

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        comm: Communicator | None = None,
        level: int = 1,
        window: int | None = None,
        smallest: int = SMALL,
    ) -> None:
        where = type(self).__name__
        self.level = checked_count(where, "level", level, 1)
        if self.level > 3:
            raise ArgumentError(
                f"{where}(level=)",
                expected="1, of the optimizer's state, 2, of gradients too, or 3, of parameters",
                received=repr(level),
                advice="3 takes the least memory",
            )
        # Where memory is short, few sums are under way.
        super().__init__(optimizer, comm, (4, 4, 1)[self.level - 1] if window is None else window)
        self.smallest = checked_count(where, "smallest", smallest, 0)
        for stage in UpdateChain(optimizer).stages:
            if stage.reads_gradients and not (stage.by_element or stage.by_parts):
                kind = type(stage).__name__
                raise ArgumentError(
                    f"{kind} in {where}",
                    expected="stages that work on parts of gradients",
                    received=f"a {kind}, which may look at a whole one",
                    advice="declare by_element = True in its class if each element is changed by "
                    "itself, by_parts = True if its sums go through self.joined, or use AllReduce",
                )
        self._share_cut(Cut(self.smallest))

    @property
    def slices(self) -> bool:
        """Whether ranks have slices of parameters."""
        return self.level > 2 and not self.alone

    def _share_cut(self, cut: Cut) -> None:
        self.reduction: ShardedRound = ShardedRound(self, self.window, cut, self.level > 1)

    @property
    def cut(self) -> Cut:
        """Which part of each parameter is whose."""
        return self.reduction.cut

    def around(self, optimizer: Optimizer | Wrapper) -> Sharded:
        """As `Reducer`; both have the same parts, as their rule is one."""
        made = type(self)(optimizer, self.comm, self.level, self.window, self.smallest)
        made._share_cut(self.cut)
        return made

    def meet(self, net: NetCore, around: Sequence[Wrapper] = ()) -> None:
        """As `AllReduce`. Errors: `ArgumentError` for parameters that are not in memory."""
        if self.alone:
            super().meet(net, around)
            return
        if self.slices:
            expect_whole_net(net)
        for param in params_of(cast("Net", net)) if self.slices else net.params():
            storage = param.storage
            # What is held in fewer bits is in memory, too.
            here = storage.nbytes or storage.by_rows or (self.slices and storage.sliced)
            if storage.filled and param.nbytes and not here:
                raise ArgumentError(
                    f"{type(self).__name__}, parameter {param.name!r}",
                    expected="parameters in memory, of whose state each rank keeps a part there",
                    received=f"one that is {param.storage.place}",
                    advice=f"{param.storage.way_back or 'keep it in memory'}, or use AllReduce",
                )
        if self.slices:
            own = cast("Net", net), self.comm, self.cut
            cut_net(*own, UpdateChain(self.optimizer), around)
        super().meet(net, around)
        for stage in UpdateChain(self.optimizer).stages:
            if stage.over_parts != self.joined:
                # Assigned it counts as a change, after which all meet again.
                stage.over_parts = self.joined
        chain, cut = UpdateChain(self.optimizer), self.cut
        planned = cut.planned(self.order.params, chain, self.comm.size)
        if cut.differs(planned) and not cut.loaded:
            whole = self.state_dict()
            cut.clear()
            super().load_state_dict(whole)
        cut.take(planned, self.order.params)
        if self.slices:
            follow_cut(self.order.params, planned)
        cut.cut_loaded(chain.rule, self.comm.rank)

    def spared(self, net: NetCore) -> int:
        params, chain = [*net.execution_plan().trained_params()], UpdateChain(self.optimizer)
        return self.cut.spared(params, chain, self.comm.size)

    def join(self) -> None:
        """As `Reducer`. Errors: `RankError` where others have batches, and parameters slices."""
        if self.slices:
            self._expect_met()
            listen(self.net)
        super().join()

    def recover(self, was: tuple[int, int]) -> None:
        super().recover(was)
        # What is put back is whole.
        self.cut.clear()

    def joined(self, total: Any) -> Any:
        if self.alone:
            return total
        own = np.array([float(total)])
        (summed,) = self.comm.all_reduce(own, what="a sum over the parts of gradients").tolist()
        return summed if isinstance(total, float) else ops_for(total).xp.asarray(summed)

    def state_dict(self) -> dict[str, Array]:
        """As `Wrapper`, of all ranks; all of them call it."""
        own = super().state_dict()
        rule = UpdateChain(self.optimizer).own_rule
        if self.alone or not self.cut or rule is None:
            return own
        made: dict[str, Array] = self.cut.whole(self.comm, rule, own)
        return made

    def own_parts(self, first_rows: dict[str, int]) -> list[Source] | None:
        """As `Reducer`: without any exchange."""
        rule = UpdateChain(self.optimizer).own_rule
        if self.alone or not self.cut or rule is None:
            return None
        if self.cut.loaded:
            self.cut.cut_loaded(rule, self.comm.rank)
        return self.cut.own_sources(self.comm.rank, state_sources(self.optimizer), first_rows)

    def own_rows(self, name: str) -> tuple[int, int] | None:
        if self.alone or not self.cut.has(name):
            return None
        rows = self.cut.rows(name)
        return rows[self.comm.rank], rows[self.comm.rank + 1]

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """As `Wrapper`: ``state`` is whole, and each rank keeps its part from the next step on."""
        super().load_state_dict(state)
        self.cut.loaded = True
        changes.add()
