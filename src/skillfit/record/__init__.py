"""The record of a run: events folded into what every face of skillfit shows."""

from skillfit.record.lists import list_runs, read_card
from skillfit.record.record import Record, RunCard

__all__ = ["Record", "RunCard", "list_runs", "read_card"]
