"""The report of a run, and what it shows beside the record."""

from skillfit.report.html_report import write_report
from skillfit.report.run_details import RunDetails, open_details

__all__ = ["RunDetails", "open_details", "write_report"]
