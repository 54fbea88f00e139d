"""Published models, each small and with its own settings: what transformers computes, or refused.

A row is a model on Hugging Face's hub. Its ``config.json``, with the keys that it has there as far
as we know, is made small: few layers, features and words, and no dropout. transformers draws such a
model at random and writes its folder, `singanet.pretrained.load` reads it. "equal": the outputs
differ by at most 1e-5 of the largest, all gradients by at most 1e-4 of their array's largest.
"refused": an error of singanet names what is not supported. "wrong" and "crashed" are defects.

    python benchmarks/published.py [NAME ...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from report import introduction, publish, table

from singanet import pretrained
from singanet.errors import SingaNetError
from tests.pretrained.comparing import apart
from tests.pretrained.published import PUBLISHED
from tests.pretrained.small_models import write_small

OUTPUTS, GRADIENTS = 1e-5, 1e-4
"""The largest differences of equal models."""


def outcome(name: str) -> tuple[str, str]:
    """What comes of the model, and the differences or the message."""
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = write_small(name, Path(place))
        try:
            net = pretrained.load(place)
        except SingaNetError as error:
            where = error.where.rpartition(f"{place}/")[2].replace("'", "")
            return "refused", f"{where}: {error.received}"
        except Exception as error:  # noqa: BLE001
            return "crashed", repr(error)[:200]
        try:
            outputs, gradients = apart(net, model, steps=24)
        except Exception as error:  # noqa: BLE001
            return "crashed", repr(error)[:200]
    far = max(gradients.values())
    good = outputs <= OUTPUTS and far <= GRADIENTS
    return "equal" if good else "wrong", f"outputs {outputs:.0e}, gradients {far:.0e}"


def main() -> None:
    """Print the table, and keep it if it is whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*PUBLISHED])
    names = parser.parse_args().names
    rows = []
    for name in names:
        rows.append([name, str(PUBLISHED[name]["model_type"]), *outcome(name)])
        print(*rows[-1], sep=" | ", flush=True)
    counts = Counter(row[2] for row in rows)
    body = f"{len(rows)} models: " + ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
    if len(names) == len(PUBLISHED):
        body = f"{introduction(__doc__)}\n\n{body}.\n\n"
        body += table(["model", "model_type", "outcome", "differences, or what is refused"], rows)
        publish("published", "Published models with their own settings", body)
    else:
        print(body)


if __name__ == "__main__":
    main()
