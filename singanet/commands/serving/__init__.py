"""``singanet serve``: a net behind HTTP."""

__all__: list[str] = []
