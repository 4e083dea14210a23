"""The skill: document, folder parts, protected regions, edits, removable units, diff, lint."""

from skillfit.skill.diff import Hunk, diff, diff_hunks
from skillfit.skill.document import NO_SKILL, Skill, estimate_tokens
from skillfit.skill.edits import (
    EXAMPLE_OP,
    MAX_EXAMPLES,
    MOVE_OP,
    NOTE_OP,
    SLOW_UPDATE_OP,
    TEXT_OPS,
    WRITE_OP,
    Applied,
    Edit,
    EditResult,
    apply_edits,
    example_edit,
)
from skillfit.skill.lint import document_problems, lint, refuse_unreadable
from skillfit.skill.regions import (
    Example,
    appendix_notes,
    examples,
    rewrite,
    slow_update_text,
    with_consolidated_notes,
    with_notes,
    with_slow_update,
    with_trained_body,
    without_placeholder,
)
from skillfit.skill.units import Piece, pieces, units

__all__ = [
    "EXAMPLE_OP",
    "MAX_EXAMPLES",
    "MOVE_OP",
    "NOTE_OP",
    "NO_SKILL",
    "SLOW_UPDATE_OP",
    "TEXT_OPS",
    "WRITE_OP",
    "Applied",
    "Edit",
    "EditResult",
    "Example",
    "Hunk",
    "Piece",
    "Skill",
    "appendix_notes",
    "apply_edits",
    "diff",
    "diff_hunks",
    "document_problems",
    "estimate_tokens",
    "example_edit",
    "examples",
    "lint",
    "pieces",
    "refuse_unreadable",
    "rewrite",
    "slow_update_text",
    "units",
    "with_consolidated_notes",
    "with_notes",
    "with_slow_update",
    "with_trained_body",
    "without_placeholder",
]
