"""The classes of Keras that `load_model` reads, as docs/migration/keras.md lists them."""

from singanet.keras import OPERATIONS
from singanet.saving.codecs.describe import KERAS


def listed():
    """The two lines of the guide."""
    layers, operations = (
        ", ".join(f"`{name}`" for name in sorted(table)) for table in (KERAS, OPERATIONS)
    )
    return f"{layers}.\n\nOperations on outputs of layers: {operations}."
