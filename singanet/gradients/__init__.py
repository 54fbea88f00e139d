"""Gradients of anything by anything, Jacobians, and products with second derivatives."""

from singanet.gradients.first_order import gradients, iter_gradients, jacobian
from singanet.gradients.second_order import hessian_vector_product

__all__ = ["gradients", "hessian_vector_product", "iter_gradients", "jacobian"]
