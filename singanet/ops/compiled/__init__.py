"""Kernels that LLVM compiles for this processor when they are first called."""
