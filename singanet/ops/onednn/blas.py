"""NumPy's BLAS beside oneDNN."""

from __future__ import annotations

import os
from functools import lru_cache

_CHOSEN_BY = "OPENBLAS_NUM_THREADS"


@lru_cache(maxsize=1)
def stand_aside() -> None:
    """Leave the cores to oneDNN's threads: what is NumPy's product runs in the calling one.

    OpenBLAS's threads look for more work for some 25 ms after each product that they share, on
    cores that OpenMP's need: a step of LeNet at batch 1 takes four times as long. What they
    would gain is little, since the large products are oneDNN's. ``OPENBLAS_NUM_THREADS`` of the
    user's stands, and so does a BLAS whose threads are OpenMP's own. It holds for the process:
    to change the number around each product would cost as much as a small one.
    """
    if _CHOSEN_BY in os.environ:
        return
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return
    for library in ThreadpoolController().select(user_api="blas").lib_controllers:
        if library.info().get("threading_layer") == "pthreads":
            library.set_num_threads(1)
