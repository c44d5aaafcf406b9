"""Line charts as SVG, for receipts: logarithmic axes, a line for each name, readable without colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 360, 70, 36, 170, 46
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 4", "10 4", "")
Line = Sequence[tuple[float, float]]


def chart(title: str, x_says: str, y_says: str, lines: Mapping[str, Line]) -> str:
    """One chart.

    Args:
        title, x_says, y_says: its text.
        lines: name -> points, all of them positive.
    """
    points = [point for line in lines.values() for point in line]
    if not points:
        return _svg([_text(WIDTH / 2, HEIGHT / 2, f"{title}: nothing was measured", "middle")])
    across = _axis([x for x, _ in points], LEFT, WIDTH - RIGHT)
    up = _axis([y for _, y in points], HEIGHT - BOTTOM, TOP)
    parts = [_text(LEFT, 20, title), _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_says, "middle")]
    parts.append(_text(8, TOP - 6, y_says))
    for value in _ticks([x for x, _ in points], 2):
        parts += [_rule(across(value), TOP, across(value), HEIGHT - BOTTOM)]
        parts.append(_text(across(value), HEIGHT - BOTTOM + 16, f"{value:g}", "middle"))
    for value in _ticks([y for _, y in points], 10):
        parts += [_rule(LEFT, up(value), WIDTH - RIGHT, up(value)), _text(LEFT - 6, up(value) + 4, f"{value:g}", "end")]
    for number, (name, line) in enumerate(lines.items()):
        colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in sorted(line))
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        parts.append(f'<polyline points="{path}" {style}/>')
        y = TOP + 14 + 18 * number
        parts.append(f'<polyline points="{WIDTH - RIGHT + 10},{y - 4} {WIDTH - RIGHT + 34},{y - 4}" {style}/>')
        parts.append(_text(WIDTH - RIGHT + 40, y, name))
    return _svg(parts)


def _axis(values: Sequence[float], begin: float, end: float) -> Callable[[float], float]:
    """Value -> place, on a logarithmic axis over all values."""
    low, high = math.log(min(values)), math.log(max(values))
    return lambda value: begin + (end - begin) * ((math.log(value) - low) / (high - low) if high > low else 0.5)


def _ticks(values: Sequence[float], base: int) -> list[float]:
    """Powers of the base within the values; one and three times powers of ten where that is few."""
    low, high = min(values), max(values)
    first, last = (math.floor(math.log(v, base) + e) for v, e in ((low, 0), (high, 1e-9)))
    found = [float(base) ** n for n in range(first, last + 2)]
    if base == 10:
        found = sorted([*found, *(3 * v for v in found)])
    return [v for v in found if low * 0.999 <= v <= high * 1.001] or [low]


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ccc"/>'


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
    head += 'font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>", ""])
