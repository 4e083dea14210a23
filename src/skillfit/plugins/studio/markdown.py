"""What models write, as readable HTML: headings, lists, tables and blocks of code.

Every character of the text is escaped, HTML included. Links and images stay text, so a page loads
nothing and leads nowhere that a model chose.
"""

from __future__ import annotations

from functools import cache

from markdown_it import MarkdownIt
from markupsafe import Markup

from skillfit.plain_text import visible

_LONGEST = 50_000  # characters that are worth the time


def markdown(text: str) -> Markup:
    """Render the text as HTML. A very long one stays as it is."""
    if len(text) > _LONGEST:
        return Markup("<pre>{}</pre>").format(visible(text))
    parser = _parser()
    tokens = parser.parse(visible(text))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):  # the headings of the page are others
            token.tag = "p"
        if token.type == "heading_open":
            token.attrSet("class", "head")
        if token.type in ("th_open", "td_open"):
            token.attrs.clear()  # inline styles, which the policy of the pages forbids
    rendered = parser.renderer.render(tokens, parser.options, {})
    return Markup('<div class="prose">{}</div>').format(Markup(rendered))


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True})
    parser.enable("table")
    return parser.disable(["link", "image", "autolink", "reference", "html_block", "html_inline"])
