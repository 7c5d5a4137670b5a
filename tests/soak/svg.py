"""Plots as SVG, without a library: panels with lines over minutes, axes with units, a legend, and marks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

_COLOURS = ("#1b6ca8", "#c8553d", "#3c8d5a", "#8a5fb0", "#b08a1e", "#555555")
_WIDTH, _HEIGHT, _GAP = 360, 190, 34
_LEFT, _RIGHT, _TOP = 58, 12, 34
_FEWEST_TICKS, _MOST_POINTS = 4, 240

Point = tuple[float, float]


@dataclass(frozen=True)
class Panel:
    """One diagram of a plot.

    Parameters
    ----------
    title, unit : str
        ``unit`` is that of the vertical axis.
    lines : dict
        Name and points (seconds, value) of each line. Where a point is missing for longer than ``gap_s`` the line ends.
    marks : sequence of float
        Seconds of faults: thin vertical lines.
    shaded : sequence of (seconds, seconds)
        Times with a grey ground.
    """

    title: str
    unit: str
    lines: dict[str, Sequence[Point]]
    marks: Sequence[float] = ()
    shaded: Sequence[tuple[float, float]] = ()
    gap_s: float = field(default=45.0)


def plot(title: str, panels: Sequence[Panel], seconds: float, note: str = "") -> str:
    """The plot's text: two panels a row, over ``seconds`` of time."""
    rows = -(-len(panels) // 2)
    cell_w, cell_h = _LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _GAP + 16
    width, height = 2 * cell_w, 30 + rows * cell_h + (18 if note else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="20" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        x, y = number % 2 * cell_w + _LEFT, 30 + number // 2 * cell_h + _TOP
        parts += _panel(panel, x, y, seconds)
    if note:
        parts.append(f'<text x="10" y="{height - 6}" fill="#555555">{escape(note)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def ticks(most: float) -> list[float]:
    """Round numbers from 0 to at least ``most``."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / _FEWEST_TICKS
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= rough * 0.999)
    return [step * i for i in range(math.ceil(most / step * 0.999) + 1)]


def thinned(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """At most about so many points: of each part of the time that with the greatest value."""
    size = -(-len(points) // most) or 1
    return [max(points[i : i + size], key=lambda point: point[1]) for i in range(0, len(points), size)]


def _panel(panel: Panel, x: int, y: int, seconds: float) -> list[str]:
    top = ticks(max((value for points in panel.lines.values() for _, value in points), default=0.0))
    minutes = ticks(seconds / 60)
    end = max(seconds, 1.0)

    def at_x(at: float) -> float:
        return x + _WIDTH * min(max(at / end, 0.0), 1.0)

    def at_y(value: float) -> float:
        return y + _HEIGHT * (1 - value / top[-1])

    parts = [f'<text x="{x}" y="{y - 20}" font-weight="bold">{escape(panel.title)}</text>']
    for begin, stop in panel.shaded:
        parts.append(
            f'<rect x="{at_x(begin):.1f}" y="{y}" width="{at_x(stop) - at_x(begin):.1f}" height="{_HEIGHT}" '
            'fill="#eeeeee"/>'
        )
    for tick in top:
        parts.append(
            f'<path d="M{x} {at_y(tick):.1f}h{_WIDTH}" stroke="#dddddd"/>'
            f'<text x="{x - 5}" y="{at_y(tick) + 4:.1f}" text-anchor="end">{tick:,.10g}</text>'
        )
    for tick in minutes:
        if tick * 60 <= end * 1.001:
            parts.append(f'<text x="{at_x(tick * 60):.1f}" y="{y + _HEIGHT + 14}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{x + _WIDTH}" y="{y + _HEIGHT + 27}" text-anchor="end">minutes</text>')
    parts.append(
        f'<text transform="translate({x - 46} {y + _HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(panel.unit)}</text>"
    )
    if panel.marks:
        strokes = "".join(f"M{at_x(mark):.1f} {y}v{_HEIGHT}" for mark in panel.marks)
        parts.append(f'<path d="{strokes}" stroke="#e0a0a0" stroke-dasharray="2 3"/>')
    parts.append(f'<path d="M{x} {y}v{_HEIGHT}h{_WIDTH}" fill="none" stroke="#333333"/>')
    legend = x
    for number, (name, points) in enumerate(panel.lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path, before = "", -math.inf
        for at, value in thinned(points):
            path += f"{'L' if at - before <= max(panel.gap_s, end / 60) else 'M'}{at_x(at):.1f} {at_y(value):.1f}"
            before = at
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
        parts.append(f'<text x="{legend}" y="{y - 6}" fill="{colour}">{escape(name)}</text>')
        legend += 14 + round(6.2 * len(name))
    return parts
