"""Plain texts, of which every token is learnt."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from singanet.data.tokens.rows import Fragment, fragments
from singanet.data.tokens.text_files import TextRecord
from singanet.data.tokens.token_loader import TokenLoader, encoded, expect_text
from singanet.types import Array


class TextFolder(TokenLoader):
    """Batches of plain texts below ``paths``, a folder, a file or several, as `TokenLoader` has it.

    A ``.txt`` file is one text; a ``.jsonl`` file has one a line, ``{"text": "..."}``. What the
    model puts around a text is put there, and ``eos_token`` behind it where the model has one. A
    text longer than ``length`` goes on in another row. A file larger than ``window`` is cut at
    line ends, and the pair of tokens at the cut is left out.
    """

    def tokens_of(self, record: TextRecord) -> list[Fragment]:
        text = expect_text(record, "text", "for conversations take the loader Chat")
        ids = encoded(record, self.tokenizer, text)
        if not len(ids):
            return []
        before, after = self._around
        parts = [before] * record.begins + [ids] + [after] * record.ends
        return fragments(np.concatenate(parts), None, self.length)

    @cached_property
    def _around(self) -> tuple[Array, Array]:
        before, after = self.tokenizer.around
        if not len(after) and self.tokenizer.eos_id is not None:
            after = np.array([self.tokenizer.eos_id], np.int32)
        return before, after
