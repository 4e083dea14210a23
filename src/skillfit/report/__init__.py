"""The report of a run, and the story behind it that every face tells."""

from skillfit.report.page import write_report
from skillfit.report.story import RunStory, Teller, read_story

__all__ = ["RunStory", "Teller", "read_story", "write_report"]
