"""Fourier transforms and complex numbers."""
