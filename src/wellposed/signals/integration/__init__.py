"""Integration: expectations under Gaussians, on arrays alone."""
