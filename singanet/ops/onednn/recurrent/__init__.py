"""Recurrent layers by oneDNN, a whole direction a kernel."""
