"""Nothing is Linux's own at import or in what is done by default.

A fresh interpreter imports what it needs of Python and NumPy, loses what Windows or macOS lack,
and only then meets the library. It is no such system, but whatever asks for what is missing fails.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import singanet

HIDDEN = """
import asyncio, concurrent.futures.thread, ctypes, gc, json, multiprocessing.pool, os, shutil
import subprocess, sys, sysconfig, tempfile, types, uuid
import numpy.testing, google.protobuf.message, h5py
system, folder = sys.argv[1:]
sysconfig.get_config_vars()
modules, names = ["spwd"], [
    "O_DIRECTORY", "copy_file_range", "memfd_create", "posix_fadvise", "posix_fallocate",
    "sched_getaffinity", "sched_setaffinity", "setresuid", "splice", "getrandom",
]
if system == "win32":
    sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=lambda *asked: None)
    modules += ["fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"]
    names += [
        "O_CLOEXEC", "O_NOFOLLOW", "chown", "fchmod", "fchown", "fork", "forkpty", "geteuid",
        "getloadavg", "getpgid", "getuid", "killpg", "mkfifo", "pread", "preadv", "pwrite",
        "pwritev", "readv", "register_at_fork", "sendfile", "setsid", "sysconf", "uname", "writev",
    ]
for name in modules:
    sys.modules[name] = None  # importing it raises
for name in names:
    if hasattr(os, name):
        delattr(os, name)

def is_hidden(path):
    if not isinstance(path, (str, bytes, os.PathLike)):
        return False
    return os.fsdecode(path).startswith(("/proc", "/sys", "/dev/shm"))

def refuse(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and is_hidden(arguments[0]):
        raise FileNotFoundError(2, "no such folder on this system", arguments[0])

def hidden(function):
    def asked(path, *arguments, **options):
        refuse("open", (path,))
        return function(path, *arguments, **options)
    return asked

sys.addaudithook(refuse)
os.stat, os.lstat = hidden(os.stat), hidden(os.lstat)
sys.platform = system
"""

TRAINED = """
import numpy as np
import singanet
from singanet.data import ArrayLoader, digits

data = digits()
x, y = data.x_train[:160], data.y_train[:160]
net = singanet.models.build("lenet", data.sample_shape, data.num_classes, seed=0)
net.compile(singanet.optimizer.Adam(lr=0.002))
kept = singanet.training.callbacks.ModelCheckpoint(folder + "/kept")
loader = ArrayLoader(x, y, batch_size=32, seed=0)
history = net.fit(loader, epochs=3, callbacks=[kept], verbose=False)
net.fit(loader, epochs=4, callbacks=[kept], resume=folder + "/kept", verbose=False)
net.save_model(folder + "/net.singanet")
net.save(folder + "/net.npz")
again = singanet.load_model(folder + "/net.singanet")
assert np.array_equal(again.predict(x), net.predict(x))
again.load(folder + "/net.npz")
np.testing.assert_allclose(again.predictor()(x), net.predict(x), atol=1e-4)
print(json.dumps(history["loss"]))
"""

IMPORTED = """
import importlib, pkgutil
import singanet
from singanet.errors import BackendError
for module in pkgutil.walk_packages(singanet.__path__, "singanet."):
    # scikit-learn and packages of servers look at the system themselves, and find one that is none.
    apart = module.name.endswith("__main__") or ".sklearn" in module.name
    if not apart and ".serving" not in module.name:
        try:
            importlib.import_module(module.name)
        except BackendError:  # a package that is not installed
            pass
from singanet.parallel.launch import JobOptions, launch
try:
    launch(JobOptions(2, ["-m", "singanet"]))
except BackendError as error:
    print(json.dumps(str(error)))
"""

COMMAND = """
from singanet.__main__ import main
run = folder + "/run"
assert main(["train", "lenet", "--data", "digits", "--epochs", "1", "--out", run]) == 0
assert main(["evaluate", run]) == 0
print(json.dumps("trained"))
"""


def elsewhere(system, code, folder):
    """What an interpreter that lacks what ``system`` lacks prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN + code, system, str(folder)],
        env={**os.environ, "PYTHONPATH": str(Path(singanet.__file__).parents[1])},
        capture_output=True, text=True, timeout=120
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("system", ["win32", pytest.param("darwin", marks=pytest.mark.slow)])
def test_a_net_trains_and_is_kept(system, tmp_path):
    losses = elsewhere(system, TRAINED, tmp_path)
    assert losses[-1] < losses[0]


@pytest.mark.full
@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_every_module_is_imported_and_a_job_of_several_processes_refused(system, tmp_path):
    told = elsewhere(system, IMPORTED, tmp_path)
    assert system in told
    assert "mpirun" in told


@pytest.mark.full
def test_the_command_trains(tmp_path):
    assert elsewhere("win32", COMMAND, tmp_path) == "trained"
