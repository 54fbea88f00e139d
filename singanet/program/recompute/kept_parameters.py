"""Small parameters as they were when a forward pass read them.

Between the passes of a caller's own loop parameters may change in place. Kernels of the way back
see that, as they do by the layers; those of the forward pass that run again for it must not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from singanet.params.storage import SMALL
from singanet.program.ir import Call, Ref, Token, refs_of
from singanet.program.relocate import placed
from singanet.types import Array


def with_kept_parameters(
    calls: Sequence[Call], tokens: list[Token], outside: dict[Ref, Array]
) -> list[Call]:
    """``calls`` whose forward kernels read copies of what lies outside, or run once.

    The copies are added to ``tokens`` and made after the first mark.
    """
    written = {token for call in calls if call.function for token in call.writes}
    copies: dict[Ref, Ref] = {}

    def kept(call: Call) -> Call:
        if call.phase != "forward" or call.function is None:
            return call
        changing = {
            token
            for token in call.reads
            if tokens[token].held is not None
            and not tokens[token].constant
            and token not in written
        }
        if not changing:
            return call
        refs = [ref for ref in refs_of(call) if ref.token in changing]
        if {ref.token for ref in refs} != changing or any(_nbytes(ref) > SMALL for ref in refs):
            return replace(call, once=True)
        for ref in refs:
            if ref not in copies:
                like = np.empty_like(outside[ref])
                copies[ref] = ref._replace(token=len(tokens), offset=0, strides=like.strides)
                tokens.append(Token(like.nbytes))
        led = placed(call, lambda ref: copies.get(ref, ref), {})
        reads = [token for token in call.reads if token not in changing]
        reads += [copies[ref].token for ref in refs]
        return replace(led, reads=tuple(dict.fromkeys(reads)))

    made = [kept(call) for call in calls]
    start = next(at for at, call in enumerate(made) if call.function is None) + 1
    return [*made[:start], *(_copy(ref, copy) for ref, copy in copies.items()), *made[start:]]


def _copy(ref: Ref, copy: Ref) -> Call:
    return Call(
        np.copyto, (copy, ref), {}, (ref.token,), (copy.token,), name="copy", phase="forward",
        once=True,
    )  # fmt: skip


def _nbytes(ref: Ref) -> int:
    return int(np.prod(ref.shape, dtype=np.int64)) * ref.dtype.itemsize
