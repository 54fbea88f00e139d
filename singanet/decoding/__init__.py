"""Autoregressive decoding: nets that read sequences step by step, and text generation."""

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_of
from singanet.decoding.decoder import Decoder
from singanet.decoding.generate import DraftModel, Generated, Sampling, Writer, generate

__all__ = ["Decoder", "DraftModel", "Generated", "Sampling", "Writer", "generate"]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_of(__name__, __all__)
