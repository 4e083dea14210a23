"""Write amounts for people: counts, dollars, times, scores and intervals.

Terminal, report, studio and messages use these formats.
"""

from __future__ import annotations


def quantity(number: int, noun: str, plural: str = "") -> str:
    """A number of things: "1 item", "1,200 items"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def rounded(number: float) -> str:
    """A count with the digits that an estimate has: "9,500", "17k", "1.8M"."""
    if number < 10_000:
        return f"{number:,.0f}"
    return f"{number / 1e3:,.0f}k" if number < 999_500 else f"{number / 1e6:,.1f}M"


def dollars(usd: float | None) -> str:
    """Small amounts have up to four decimals. Empty for an unknown price."""
    if usd is None:
        return ""
    if usd >= 0.1 or usd == 0:
        return f"${usd:,.2f}"
    return f"${usd:.4f}".rstrip("0") if usd >= 0.0001 else "below $0.0001"


def rounded_dollars(usd: float) -> str:
    """Dollars with the digits that an estimate has: "$1,200", "$12.35", "$0.0035"."""
    if usd >= 100:
        return f"${usd:,.0f}"
    if usd >= 0.1 or usd == 0:
        return f"${usd:.2f}"
    return f"${usd:.2g}" if usd >= 0.0001 else "<$0.0001"


def duration(seconds: float) -> str:
    """A time span in its two largest units: "2 h 5 min", "1.5 min", "40 s"."""
    minutes = seconds / 60
    if minutes >= 60:
        return f"{int(minutes // 60)} h {int(minutes % 60)} min"
    if minutes >= 10:
        return f"{minutes:.0f} min"
    if minutes >= 1:
        return f"{minutes:.1f} min"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def budget_amount(cap: str, value: float) -> str:
    """What a cap of the budget counts: "$5.00", "10 min", "1,000 calls"."""
    if cap == "usd":
        return dollars(value)
    return duration(value * 60) if cap == "minutes" else quantity(int(value), cap.removesuffix("s"))


def percent(score: float) -> str:
    return f"{score * 100:.1f}".removesuffix(".0") + "\u00a0%"


def points(difference: float) -> str:
    """A difference of scores in percentage points, with a real minus sign."""
    # Rounded first: 0.3625 reads the same whether it was computed as 0.36249999 or 0.36250001.
    return f"{round(difference * 100, 6):+z.1f}".replace("-", "−")


def with_interval(difference: float, low: float, high: float) -> str:
    """A difference of scores and its interval: "+0.120 (+0.05 … +0.19)"."""
    return f"{difference:+z.3f} ({low:+z.2f} … {high:+z.2f})"
