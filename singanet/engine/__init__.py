"""Passes and steps of a net: the plan, forward, backward, and what carries them out.

`net` and `model` are the net, `plan` and `fusion` the order in which it runs, `feeds` what goes in,
`foreign` calls of layers of the user's own. `backward` and `gradients` are the passes, `step` one
training step, `executor` who carries it out; `timeline` and `recompute` are about memory,
`holding` about weights of few bits, `adapting` about low-rank pairs.
"""

from __future__ import annotations

__all__: list[str] = []
