"""``singanet serve``: a net behind HTTP."""
