import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")

HELD = """
import json, os, sys, threading, time
from singanet.base.processes import free_in_children

first, second = free_in_children(threading.Lock()), free_in_children(threading.RLock())
changed, held, done = [0, 0], threading.Event(), threading.Event()

def change():
    # One lock inside the other, as a recording that asks for the speeds of kernels.
    with first:
        changed[0] += 1
        held.set()
        time.sleep(0.1)
        with second:
            changed[1] += 1
    held.clear()

seen = []
for _ in range(3):
    thread = threading.Thread(target=change)
    thread.start()
    held.wait()
    read, write = os.pipe()
    if not os.fork():
        free = first.acquire(timeout=5) and second.acquire(timeout=5)
        os.write(write, json.dumps([bool(free), *changed]).encode())
        os._exit(0)
    seen.append(json.loads(os.read(read, 100)))
    thread.join()
print(json.dumps([seen, first.acquire(timeout=1), second.acquire(timeout=1)]))
"""


def test_a_child_finds_locks_free_and_nothing_half_changed():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HELD],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    seen, *free = json.loads(done.stdout)
    assert [child for child, *_ in seen] == [True] * 3
    assert all(one == other for _, one, other in seen)
    assert free == [True, True]
