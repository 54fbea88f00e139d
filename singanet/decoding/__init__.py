"""Nets over sequences that come step by step, and texts that they write."""

from singanet.decoding.decoder import Decoder
from singanet.decoding.generate import Generated, generate, written
from singanet.decoding.sampling import Sampling

__all__ = ["Decoder", "Generated", "Sampling", "generate", "written"]
