"""Blind inpainting on MNIST, section 4.2."""
