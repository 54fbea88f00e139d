"""Autoregressive decoding: nets that read sequences step by step, and text generation."""

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_of
from singanet.decoding.beams import BeamSearch
from singanet.decoding.decoder import Decoder
from singanet.decoding.drafts import DraftModel
from singanet.decoding.generate import Generated, Writer, generate
from singanet.decoding.guide import Guide
from singanet.decoding.processors import Processors
from singanet.decoding.sampling import Sampling

__all__ = [
    "BeamSearch",
    "Decoder",
    "DraftModel",
    "Generated",
    "Guide",
    "Processors",
    "Sampling",
    "Writer",
    "generate",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_of(__name__, __all__)
