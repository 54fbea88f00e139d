"""Autoregressive decoding: nets that read sequences step by step, and text generation."""

from singanet.decoding.decoder import Decoder
from singanet.decoding.generate import DraftModel, Generated, Sampling, Writer, generate

__all__ = ["Decoder", "DraftModel", "Generated", "Sampling", "Writer", "generate"]
