"""Nets over sequences that come step by step, and texts that they write."""

from singanet.decoding.decoder import Decoder
from singanet.decoding.draft import Drafter
from singanet.decoding.generate import generate
from singanet.decoding.sampling import Sampling
from singanet.decoding.writer import Generated, Writer

__all__ = ["Decoder", "Drafter", "Generated", "Sampling", "Writer", "generate"]
