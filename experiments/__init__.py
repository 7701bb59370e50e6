"""The papers' claims, rerun with wellposed on real data: ``python -m experiments`` from the repository's root."""
