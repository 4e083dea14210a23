"""The report of a run, and the story behind it that every face tells."""

from skillfit.report.render import write_report
from skillfit.report.story import RunStory
from skillfit.report.tell import Teller, read_story

__all__ = ["RunStory", "Teller", "read_story", "write_report"]
