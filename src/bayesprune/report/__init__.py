"""What people look at: tables and figures of runs, and the report of a reproduction."""

from bayesprune.report.figures.kept_units import draw_kept_units
from bayesprune.report.figures.model_figures import draw_model_figures
from bayesprune.report.sweeps import draw_tradeoffs, sweep_tables
from bayesprune.report.tables import latency_lines, removal_lines, stage_table
from bayesprune.report.writing import write_report

__all__ = [
    "draw_kept_units",
    "draw_model_figures",
    "draw_tradeoffs",
    "latency_lines",
    "removal_lines",
    "stage_table",
    "sweep_tables",
    "write_report",
]
