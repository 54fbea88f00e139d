"""Programs of nets on a device: recorded on the host, and run on the device's arrays."""

from __future__ import annotations

__all__: list[str] = []
