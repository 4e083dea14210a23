"""Bar charts as plain SVG text."""

from __future__ import annotations

from html import escape

COLOURS = ("#9aa5b1", "#2563eb", "#0f766e")
_ROW, _LEFT, _WIDTH = 14, 200, 420


def bars(title: str, rows: list[tuple[str, dict[str, float]]], limit: float | None = None) -> str:
    """Horizontal bars, one group per row; `limit` draws a line that bars should not pass."""
    names = list(rows[0][1])
    top = max([value for _, group in rows for value in group.values()] + [limit or 0.0]) or 1.0
    group_height = _ROW * len(names) + 6
    height = 60 + group_height * len(rows)
    parts = [f'<text x="10" y="20" font-size="15" font-weight="bold">{escape(title)}</text>']
    for index, name in enumerate(names):
        parts.append(
            f'<rect x="{_LEFT + 150 * index}" y="30" width="10" height="10" fill="{COLOURS[index]}"/>'
        )
        parts.append(f'<text x="{_LEFT + 14 + 150 * index}" y="39">{escape(name)}</text>')
    for row, (label, group) in enumerate(rows):
        y = 50 + row * group_height
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + group_height / 2}" text-anchor="end">{escape(label)}</text>'
        )
        for index, value in enumerate(group.values()):
            width = max(0.0, value) / top * _WIDTH
            at = y + index * _ROW
            parts.append(
                f'<rect x="{_LEFT}" y="{at}" width="{width:.1f}" height="{_ROW - 2}" fill="{COLOURS[index]}"/>'
            )
            parts.append(
                f'<text x="{_LEFT + width + 4:.1f}" y="{at + _ROW - 4}" font-size="10">{value:.3f}</text>'
            )
    if limit is not None:
        x = _LEFT + limit / top * _WIDTH
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="46" y2="{height - 6}" stroke="#b91c1c" stroke-dasharray="4 3"/>'
        )
    style = 'font-family="system-ui, sans-serif" font-size="11" fill="#1f2933"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 60}" height="{height}" {style}>\n{body}\n</svg>\n'
