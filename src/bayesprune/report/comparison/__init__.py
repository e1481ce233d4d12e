"""Rows of a reproduction beside the paper's tables: medians, verdicts, and what else they show."""
