"""Gated models with fewer units: of the same classes, with their gates, to train on or to sample from."""

from bayesprune.narrowing.narrowing import Narrowing, narrow

__all__ = ["Narrowing", "narrow"]
