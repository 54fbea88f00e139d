"""The classes of a room: what is no class is left out, on every Python."""

from types import SimpleNamespace

from singanet.base.elsewhere import public_classes


def test_aliases_of_types_and_functions_are_no_classes():
    room = SimpleNamespace(
        __all__=["Kind", "Other", "Alias", "alias", "function", "number"],
        Kind=type("Kind", (list,), {}), Other=dict, Alias=list[int], alias=tuple[int, ...],
        function=len, number=3, Hidden=list,
    )  # fmt: skip
    assert public_classes(room, list) == {"Kind": room.Kind}
    assert public_classes(room, object) == {"Kind": room.Kind, "Other": dict}
