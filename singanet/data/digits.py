"""Real handwritten digits, shipped with the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from singanet.data.dataset import Dataset
from singanet.data.npz import read_npz

_FILE = Path(__file__).parent / "files" / "digits.npz"


def digits() -> Dataset:
    """1,797 handwritten digits, (1, 8, 8) each, pixel values 0 to 16 scaled to [0, 1].

    The test set of UCI's *Optical Recognition of Handwritten Digits* (CC BY 4.0; the source
    stands in ``files/NOTICE.md``). The split is fixed: of each class every fifth image, in
    the order of the file, is for testing. That leaves 1,442 to train on and 355 to test on.
    """
    arrays = read_npz(_FILE, ("images", "labels"))
    images, labels = arrays["images"], arrays["labels"]
    test = np.zeros(len(labels), bool)
    for digit in range(10):
        test[np.flatnonzero(labels == digit)[4::5]] = True
    return Dataset.from_arrays(
        "digits", images[~test], labels[~test], images[test], labels[test], scale=16.0
    )
