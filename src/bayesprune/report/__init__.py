"""What people look at: tables and figures of runs."""

from bayesprune.report.figures import draw_kept_units
from bayesprune.report.tables import stage_table

__all__ = ["draw_kept_units", "stage_table"]
