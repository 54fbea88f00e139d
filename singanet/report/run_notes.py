"""What is said of a run at its start."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from singanet.base.described import Configurable
from singanet.base.files import replacing
from singanet.errors import ConfigError
from singanet.net import FeedForwardNet
from singanet.report.run_files import CONFIG, PICTURE, SUMMARY
from singanet.training.callbacks import Callback
from singanet.training.files import check_folder


class RunNotes(Callback):
    """Writes ``config.json``, ``summary.txt`` and ``net.svg`` to ``folder`` before the first step.

    The configuration holds ``settings`` as they are given and what the fit knows: optimizer and
    loss, each as its `to_config` has it, epochs, seed, type, device. What is no JSON type is
    written as Python shows it.
    """

    def __init__(
        self, folder: str | PathLike[str], settings: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = Path(folder)
        self.settings = dict(settings or {})

    def on_train_begin(self) -> None:
        """Write. Errors: `FileAccessError`."""
        check_folder(self.folder)
        net: Any = self.session.net
        _write(self.folder / CONFIG, json.dumps(self._config(), indent=2) + "\n")
        _write(self.folder / SUMMARY, net.summary() + "\n")
        if isinstance(net, FeedForwardNet):  # what is trained like a net need not be a graph
            net.plot(self.folder / PICTURE)

    def _config(self) -> dict[str, Any]:
        from singanet import __version__

        session = self.session
        rate = session.rule.lr
        known = {
            "singanet": __version__,
            "epochs": session.epochs,
            "optimizer": _described(session.optimizer),
            "learning_rate": rate if isinstance(rate, (int, float)) else _described(rate),
            "loss": _described(session.net.loss),
            "seed": session.net.seed,
            "mixed_precision": _described(session.compiled.precision),
            "type": str(session.net.dtype),
            "device": session.net.device.name,
        }
        made: dict[str, Any] = _json(known | self.settings)
        return made


def _described(thing: Any) -> Any:
    """Data that `from_config` builds it from again, as far as it is data; else its class."""
    if not isinstance(thing, Configurable):
        return None if thing is None else type(thing).__name__
    try:
        return thing.to_config()
    except ConfigError:
        return {"class": type(thing).__name__, "arguments": thing.arguments}


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _write(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")
