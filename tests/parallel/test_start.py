import subprocess
import sys

import numpy as np
import pytest

from singanet import parallel
from singanet.errors import ArgumentError


def test_a_lone_process_has_size_one_and_loads_no_mpi():
    code = (
        "import sys, singanet\n"
        "assert 'singanet.parallel' not in sys.modules\n"
        "from singanet import parallel\n"
        "comm = parallel.init()\n"
        "assert (comm.rank, comm.size) == (0, 1) and comm is parallel.init()\n"
        "assert not any(name.startswith('mpi4py') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_lone_process_has_what_it_gives():
    comm = parallel.Alone()
    array = np.arange(3.0)
    assert comm.all_reduce(array) is array
    assert comm.broadcast(array) is array
    assert [part.tolist() for part in comm.all_gather(array)] == [[0, 1, 2]]
    comm.barrier()
    with pytest.raises(ArgumentError, match="size 1"):
        comm.send(array, 0)
