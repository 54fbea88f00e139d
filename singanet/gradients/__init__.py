"""Compute gradients of anything by anything, Jacobians, and Hessian-vector products."""

from singanet.gradients.first_order import gradients, iter_gradients, jacobian
from singanet.gradients.second_order import hessian_vector_product

__all__ = ["gradients", "hessian_vector_product", "iter_gradients", "jacobian"]
