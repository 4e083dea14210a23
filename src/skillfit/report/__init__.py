"""The outside view of a run, and the report made from it."""

from skillfit.report.html_report import write_report
from skillfit.report.story import RunStory
from skillfit.report.story_builder import RunFollower, StoryBuilder, open_run, read_story

__all__ = ["RunFollower", "RunStory", "StoryBuilder", "open_run", "read_story", "write_report"]
