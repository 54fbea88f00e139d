"""Autoregressive decoding: nets that read sequences step by step, and text generation."""

from singanet.decoding.decoder import Decoder
from singanet.decoding.generate import Drafter, Generated, Sampling, Writer, generate

__all__ = ["Decoder", "Drafter", "Generated", "Sampling", "Writer", "generate"]
