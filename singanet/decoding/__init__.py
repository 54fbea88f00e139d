"""Nets over sequences that come step by step, and texts that they write."""

from singanet.decoding.decoder import Decoder
from singanet.decoding.generate import Drafter, Generated, Sampling, Writer, generate

__all__ = ["Decoder", "Drafter", "Generated", "Sampling", "Writer", "generate"]
