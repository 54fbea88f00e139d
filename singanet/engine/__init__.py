"""Passes and steps of a net: plan, forward, backward and their executors.

`net` and `model` are the net, `plan` and `fusion` the order of its steps, `feeds` its inputs,
`foreign` calls of users' layers. `backward` and `gradients` are the passes, `step` is one training
step, `executor` runs it. `timeline` and `recompute` are about memory, `holding` about narrow
weights, `adapting` about low-rank pairs.
"""

from __future__ import annotations

__all__: list[str] = []
