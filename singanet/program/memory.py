"""The memory of a training step, from the plan of its recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.arguments import checked_count
from singanet.engine.net import expect_host
from singanet.engine.ones import ones
from singanet.errors import ArgumentError
from singanet.optimizer.stages import reducers
from singanet.program.array_tree import root_of
from singanet.program.compile import compiled
from singanet.program.peak import PeakMemory, peak_memory
from singanet.program.programs import programs_of
from singanet.program.recompute.choice import Recompute
from singanet.program.trace.recorder import rehearse

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.optimizer import Optimizer, Wrapper


def planned_memory(
    net: Net,
    batch_size: int,
    optimizer: Optimizer | Wrapper | None,
    extent: int | None,
    recompute: Recompute | None,
) -> PeakMemory:
    """See `FeedForwardNet.memory`."""
    size = checked_count("net.memory", "batch_size", batch_size, 1)
    if extent is not None:
        extent = checked_count("net.memory", "extent", extent, 1)
    expect_host(net, "net.memory")
    if reducers(optimizer):
        raise ArgumentError(
            "net.memory, optimizer",
            expected="an optimizer whose step can be recorded",
            received=f"{type(reducers(optimizer)[0]).__name__}, which waits for other processes",
            advice="pass what is inside of it; its sums add the gradients that are under way",
        )
    level = programs_of(net).level("net.memory", recompute)
    plan = net.plan()
    feed = ones(plan, size, net.device, net.dtype, extent)
    recorder = rehearse(net, lambda recorder: recorder.rehearsed_step(feed, optimizer))
    recording = compiled(recorder, level)
    params = {id(value): value.nbytes for _, value in recorder.params}
    # That of small parameters lies side by side.
    roots = [root_of(array) for n in recorder.numbers for array in n.arrays]
    state = {id(root): root.nbytes for root in roots}
    used = {token for call in recording.calls for token in (*call.reads, *call.writes)}
    tokens = [recorder.tape.tokens[token] for token in sorted(used)]
    tokens = [token for token in tokens if token.held is not None]
    held = {id(token.held): token.nbytes for token in tokens}
    other = [size for key, size in held.items() if key not in params and key not in state]
    folded = [ref.token for ref in recording.outside if ref.token in recorder.tape.folded]
    other += [recorder.tape.tokens[token].nbytes for token in folded]
    calls = sum(call.parts for call in recording.calls)
    return peak_memory(recording.layout, params.values(), state.values(), other, calls)
