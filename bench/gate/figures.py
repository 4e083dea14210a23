"""Bar charts as plain SVG text."""

from __future__ import annotations

from html import escape

COLOURS = ("#9aa5b1", "#2563eb", "#0f766e")
_ROW, _LEFT, _WIDTH = 14, 200, 420


def bars(title: str, rows: list[tuple[str, dict[str, float]]], limit: float | None = None) -> str:
    """Horizontal bars, one group per row; `limit` draws a line across them."""
    names = list(rows[0][1])
    top = max([value for _, group in rows for value in group.values()] + [limit or 0.0]) or 1.0
    group_height = _ROW * len(names) + 6
    width, height = _LEFT + _WIDTH + 60, 60 + group_height * len(rows)
    parts = [f'<text x="10" y="20" font-size="15" font-weight="bold">{escape(title)}</text>']
    for index, name in enumerate(names):
        x = _LEFT + 150 * index
        parts.append(f'<rect x="{x}" y="30" width="10" height="10" fill="{COLOURS[index]}"/>')
        parts.append(f'<text x="{x + 14}" y="39">{escape(name)}</text>')
    for row, (label, group) in enumerate(rows):
        parts += _group(label, group, 50 + row * group_height, group_height, top)
    if limit is not None:
        line = _LEFT + limit / top * _WIDTH
        ends = f'x1="{line:.1f}" x2="{line:.1f}" y1="46" y2="{height - 6}"'
        parts.append(f'<line {ends} stroke="#b91c1c" stroke-dasharray="4 3"/>')
    size = f'width="{width}" height="{height}"'
    style = 'font-family="system-ui, sans-serif" font-size="11" fill="#1f2933"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{body}\n</svg>\n'


def _group(label: str, group: dict[str, float], y: int, height: int, top: float) -> list[str]:
    """The label and the bars of one row."""
    middle = y + height / 2
    parts = [f'<text x="{_LEFT - 8}" y="{middle}" text-anchor="end">{escape(label)}</text>']
    for index, value in enumerate(group.values()):
        length, at = max(0.0, value) / top * _WIDTH, y + index * _ROW
        place = f'x="{_LEFT}" y="{at}" width="{length:.1f}" height="{_ROW - 2}"'
        parts.append(f'<rect {place} fill="{COLOURS[index]}"/>')
        place = f'x="{_LEFT + length + 4:.1f}" y="{at + _ROW - 4}"'
        parts.append(f'<text {place} font-size="10">{value:.3f}</text>')
    return parts
