"""Figures, one a file, and what they share."""
