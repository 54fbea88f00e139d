"""Published transformers: load the folders and files of other libraries, and write them.

`loading` opens a `source`, builds the net of its `config` and reads the arrays; `saving` writes
them. `families` lists the families, in `decoders` (`llama_families`, `gpt_families`), `encoders`,
`modernbert`, `deberta`, `encoder_decoders`, `vision`, `swin`, `beit`, `image_text`, by `drawing`.
Heads are in `heads`, `headed` adds one, `preference` that of pairs. Others: `gguf_models`,
`adapter`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_when_asked

if TYPE_CHECKING:  # else when they are asked for: a process that reads a model writes none
    from singanet.pretrained.adapter import load_adapter, save_adapter
    from singanet.pretrained.loading import PretrainedNet, build, load
    from singanet.pretrained.preference import preference_net
    from singanet.pretrained.saving import save
    from singanet.pretrained.source import tokenizer

__all__ = [
    "PretrainedNet",
    "build",
    "load",
    "load_adapter",
    "preference_net",
    "save",
    "save_adapter",
    "tokenizer",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
