"""Compute gradients of anything by anything, Jacobians, and Hessian-vector products."""

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_of
from singanet.gradients.first_order import gradients, iter_gradients, jacobian
from singanet.gradients.second_order import hessian_vector_product

__all__ = ["gradients", "hessian_vector_product", "iter_gradients", "jacobian"]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_of(__name__, __all__)
