"""Nets as data and files: configurations, parameters, whole models, protobuf messages."""

from __future__ import annotations

__all__: list[str] = []
