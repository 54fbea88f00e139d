"""A published model with a head for other classes."""

from __future__ import annotations

import re
from pathlib import Path

from singanet import pretrained
from singanet.pretrained import PretrainedNet


def with_head(
    folder: Path, task: str, labels: list[str], inputs: list[str] | None = None
) -> PretrainedNet:
    """The model of ``folder`` for ``task``, such as "SequenceClassification", and these labels.

    All of its arrays but those of the head are the folder's.
    """
    base = pretrained.load(folder, inputs=inputs)
    kind = re.sub(r"(Model|For\w+)$", "", base.config["architectures"][0])
    config = {**base.config, "architectures": [f"{kind}For{task}"]}
    config["id2label"] = {str(k): label for k, label in enumerate(labels)}
    config["label2id"] = {label: k for k, label in enumerate(labels)}
    net = pretrained.build(config, inputs=inputs, seed=0)
    known = {param.name: param.value for param in base.params()}
    for param in net.params():
        value = known.get(param.name, param.value)
        param.value[...] = value if value.shape == param.shape else param.value
    return net
