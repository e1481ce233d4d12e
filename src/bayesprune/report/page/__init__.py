"""The report as one HTML page that needs nothing from anywhere else."""

from bayesprune.report.page.building import PAGE, page

__all__ = ["PAGE", "page"]
