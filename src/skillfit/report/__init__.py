"""The outside view of a run, and the report made from it."""

from skillfit.report.html_report import write_report
from skillfit.report.run_details import RunDetails, open_details
from skillfit.report.story import RunStory
from skillfit.report.story_builder import RunFollower, read_story

__all__ = [
    "RunDetails",
    "RunFollower",
    "RunStory",
    "open_details",
    "read_story",
    "write_report",
]
