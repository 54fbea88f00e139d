"""The folder of a published model: which file has its arrays, and which may not be read."""

from __future__ import annotations

from pathlib import Path

from singanet.base.files import expect_in_folder, explained
from singanet.base.kinds import PUBLISHED, kind_of
from singanet.errors import FileAccessError, one_of

SINGLE = "model.safetensors"
INDEX = f"{SINGLE}.index.json"
_WEIGHTS = (SINGLE, INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")
"""Files of a folder's arrays, by precedence; transformers takes the first of them too."""


def weights_in(folder: Path) -> Path:
    """The file in ``folder`` that has its arrays, or the index of those that do.

    Without one of the usual names it is the only ``.gguf`` file. Errors: `FileAccessError` where
    there is none, or several, and for a link that leads out of the folder.
    """
    with explained(folder, "read"):
        found = [path for name in _WEIGHTS if (path := folder / name).exists()]
        found = found or sorted(folder.glob("*.gguf"))[:20]
    if not found or (len(found) > 1 and found[0].suffix == ".gguf"):
        kind = kind_of(folder)
        has = one_of(path.name for path in found) if found else "none of them"
        raise FileAccessError(
            f"file {str(folder)!r}",
            expected=f"a checkpoint, or a folder with {', '.join(_WEIGHTS)} or one .gguf file",
            received=f"{kind.name} with {has}",
            advice="put the model's arrays there too" if kind is PUBLISHED else kind.advice,
        )
    expect_in_folder(folder, found[0])
    return found[0]
