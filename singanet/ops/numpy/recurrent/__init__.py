"""Recurrent layers, a whole direction a kernel."""
