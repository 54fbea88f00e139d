"""A loader of texts with masked tokens, for masked language models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from singanet.base.arguments import checked_number
from singanet.data.tokens.text_files import IGNORED, Fragment, TextRecord, TokenRow
from singanet.data.tokens.token_loader import TokenLoader, encoded, expect_text
from singanet.data.tokens.tokenizer import Tokenizer
from singanet.errors import ArgumentError, DataError
from singanet.types import Array


class MaskingLoader(TokenLoader):
    """A loader of plain texts in ``.txt`` and ``.jsonl`` files, some of whose tokens are masked.

    Each token that is not special is chosen with ``probability``: 80 % of the chosen ones become
    the mask token, 10 % a random token of the vocabulary, and 10 % stay (Devlin et al. 2018).
    Targets ``y`` (N, T) are the chosen tokens, and -100 for all others: for the loss of a model
    with a head for words. Each epoch draws anew, except of a loader from `keep_back`, so that
    validations are comparable.

    A ``.txt`` file is one text; a ``.jsonl`` file has one a line, ``{"text": "..."}``. A text of
    more than ``length`` tokens is cut into pieces, and each gets the model's special tokens.

    Errors: `DataError` for a tokenizer without a mask token.

    Args:
        paths: Path of a file or a folder, or a list of paths.
        tokenizer: The `Tokenizer` of the model.
        batch_size: Positive int, the rows of a batch of one rank.
        length: Positive int, the most tokens of a row, T, special ones included.
        probability: Number between 0 and 1, the share of tokens that are chosen.
        pad_to: Lengths up to ``length``; a batch is padded to one of them. None for a quarter and
            a half of it; empty to pack texts into rows of ``length`` tokens.
        inputs: Names of the arrays of ``x``: "input_ids", "segments" and "attention_mask". None for
            "input_ids" and "attention_mask", or for packed rows "input_ids" and "segments".
        shuffle: Whether each epoch has an order of its own, of blocks and of rows in a block.
        seed: Int from 0 on, the seed of the orders and of the choice.
        window: Positive int, the bytes of a file that are read at a time: a block.
        rank: Int, the rank of this process, from 0 to ``world_size`` - 1.
        world_size: Int, the number of processes that train together.

    Examples:
        >>> import pathlib, tokenizers
        >>> words = {"[MASK]": 0, "a": 1, "b": 2}
        >>> letters = tokenizers.Tokenizer(tokenizers.models.BPE(words, []))
        >>> tokenizer = singanet.data.Tokenizer(letters)
        >>> _ = pathlib.Path("letters.txt").write_text("abab")
        >>> loader = singanet.data.MaskingLoader("letters.txt", tokenizer, 1, 8, 0.5, pad_to=[4])
        >>> [(x["input_ids"].tolist(), y.tolist()) for x, y in loader]
        [([[0, 2, 0, 0]], [[1, -100, 1, 2]])]
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        tokenizer: Tokenizer,
        batch_size: int,
        length: int,
        probability: float = 0.15,
        *,
        pad_to: Sequence[int] | None = None,
        inputs: Sequence[str] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        window: int = 1 << 20,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(
            paths,
            tokenizer,
            batch_size,
            length,
            pad_to=_quarters(length) if pad_to is None else pad_to,
            inputs=inputs,
            shuffle=shuffle,
            seed=seed,
            window=window,
            rank=rank,
            world_size=world_size,
        )
        self.probability = checked_number(
            "MaskingLoader, probability",
            probability,
            "a number above 0 and up to 1",
            lambda share: 0 < share <= 1,
            "0.15 is usual",
        )
        if tokenizer.mask_id is None:
            raise DataError(
                "MaskingLoader, tokenizer",
                expected="a tokenizer with a mask token",
                received="none in its files, and neither [MASK] nor <mask> in its vocabulary",
                advice="take the tokenizer of a masked language model, or pass mask_token=",
            )
        self._room = self.length - sum(map(len, tokenizer.around))
        if self._room < 1:
            raise ArgumentError(
                "MaskingLoader, length",
                expected=f"more than {self.length - self._room}, the special tokens of a text",
                received=str(length),
                advice="128 is usual",
            )
        self._draws_anew = True

    def tokens_of(self, record: TextRecord) -> list[Fragment]:
        text = expect_text(record, "text", "for conversations take the loader Chat")
        ids = encoded(record, self.tokenizer, text)
        before, after = self.tokenizer.around
        pieces = (ids[at : at + self._room] for at in range(0, len(ids), self._room))
        whole = (np.concatenate([before, piece, after]) for piece in pieces)
        return [Fragment(each, each) for each in whole]

    def keep_back(self, share: float) -> MaskingLoader:
        other = super().keep_back(share)
        other._draws_anew = False
        return other

    def _block(self, epoch: int, block: int) -> list[TokenRow]:
        rows = super()._block(epoch, block)
        # The last number gives other draws than for the order.
        rng = np.random.default_rng([self.seed, epoch if self._draws_anew else 0, block, 1])
        return [[self._masked(part.ids, rng) for part in row] for row in rows]

    def _masked(self, ids: Array, rng: np.random.Generator) -> Fragment:
        chosen = (rng.random(len(ids)) < self.probability) & ~self._is_special[ids]
        how = rng.random(len(ids))
        drawn = rng.integers(0, self.tokenizer.vocabulary_size, len(ids), np.int32)
        shown = np.where(chosen & (how < 0.9), drawn, ids)
        shown = np.where(chosen & (how < 0.8), np.int32(self.tokenizer.mask_id or 0), shown)
        return Fragment(shown, np.where(chosen, ids, np.int32(IGNORED)))

    @cached_property
    def _is_special(self) -> Array:
        """Whether each id of the vocabulary is a special token."""
        most = max(self.tokenizer.backend.get_vocab(True).values())
        made = np.zeros(most + 1, bool)
        made[list(self.tokenizer.special_ids)] = True
        return made

    def _identity(self) -> dict[str, int]:
        own = {"probability": round(self.probability * (1 << 32)), "anew": int(self._draws_anew)}
        return {**super()._identity(), **own}


def _quarters(length: int) -> tuple[int, ...]:
    return (max(1, length // 4), max(1, length // 2)) if isinstance(length, int) else ()
