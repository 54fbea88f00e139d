"""What the command line loads before it knows what is asked of it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "argv", [["--help"], ["models"], ["train", "--help"], ["launch", "--help"]]
)
def test_nothing_is_imported_that_is_not_needed(argv):
    code = (
        "import sys\nfrom singanet.__main__ import main\n"
        f"try:\n    main({argv!r})\nexcept SystemExit:\n    pass\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stderr.split()
    heavy = ("training", "parallel", "launch", "checkpoint", "report")
    heavy = (*(f"singanet.{room}" for room in heavy), "h5py", "tqdm")
    # The options of a fit are the arguments of net.fit.
    light = ("singanet.training", "singanet.training.options")
    assert [name for name in loaded if name.startswith(heavy) and name not in light] == []
    assert "singanet.commands.training_commands" in loaded
