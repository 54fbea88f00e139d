"""Derivatives of recorded calls: tangents carried along with the arrays they belong to."""
