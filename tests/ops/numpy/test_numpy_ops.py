"""NumpyOps as a whole."""

from __future__ import annotations

import numpy as np

from singanet.ops import NumpyOps, numpy_ops


def test_no_two_parts_define_the_same_name():
    """One would silently hide the other."""
    owners = {}
    for part in NumpyOps.__mro__[:-1]:
        for name in vars(part):
            if not name.startswith("__"):
                owners.setdefault(name, []).append(part.__name__)
    assert {name: parts for name, parts in owners.items() if len(parts) > 1} == {}


def test_every_public_kernel_says_what_it_does():
    missing = [
        name
        for part in NumpyOps.__mro__[:-1]
        for name, member in vars(part).items()
        if not name.startswith("_") and callable(member) and not member.__doc__
    ]
    assert missing == []


def test_the_shared_instance_works_on_numpy():
    assert numpy_ops.xp is np
    assert numpy_ops.name == "numpy"
