"""The skill document: package, frontmatter and body, protected regions, edits, diff, lint."""

from skillfit.skill.diff import DiffLine, Hunk, diff, diff_hunks
from skillfit.skill.document import Skill, estimate_tokens
from skillfit.skill.edits import (
    EXAMPLE_OP,
    MAX_EXAMPLES,
    NOTE_OP,
    SLOW_UPDATE_OP,
    Applied,
    Edit,
    EditResult,
    apply_edits,
    example_edit,
)
from skillfit.skill.lint import Problem, lint
from skillfit.skill.regions import (
    Example,
    appendix_notes,
    examples,
    rewrite,
    slow_update_text,
    with_consolidated_notes,
    with_examples,
    with_notes,
    with_slow_update,
    without_placeholder,
)

__all__ = [
    "EXAMPLE_OP",
    "MAX_EXAMPLES",
    "NOTE_OP",
    "SLOW_UPDATE_OP",
    "Applied",
    "DiffLine",
    "Edit",
    "EditResult",
    "Example",
    "Hunk",
    "Problem",
    "Skill",
    "appendix_notes",
    "apply_edits",
    "diff",
    "diff_hunks",
    "estimate_tokens",
    "example_edit",
    "examples",
    "lint",
    "rewrite",
    "slow_update_text",
    "with_consolidated_notes",
    "with_examples",
    "with_notes",
    "with_slow_update",
    "without_placeholder",
]
