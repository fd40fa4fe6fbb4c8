"""A view as one self-contained page: figures drawn in the browser, nothing fetched from anywhere.

Every text is escaped by the template; the charts travel as JSON in which no tag can be closed.
"""

from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from math import log10
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from loadgen.report.series import Axis, Chart, Course, Line, Shade
from loadgen.report.view import View

_SYMBOLS = {"": "circle", "above": "triangle-up-open", "invalid": "x"}
_SHAPES = ("circle", "square", "diamond", "cross")  # a second sign beside the colour
_BESIDE = ("top right", "bottom left")  # in turn: two points that meet keep both their texts
_MODES = {"line": "lines+markers", "step": "lines", "dots": "markers"}
_STRIP_PX, _HEADING_PX, _ABOVE_PX, _BELOW_PX = 90, 34, 26, 48  # of the run over time
_RAMP_STEPS = 7  # colours of an ordered family: --ramp-0 … --ramp-7


def render_html(view: View) -> str:
    """Return the page; the plotting library and the style sheet are inside it."""
    course = view.over_time
    height = 0 if course is None else height_px(course)
    return page("page.html.j2", view=view, height=height, **pictures(view.charts, course))


def pictures(charts: Sequence[Chart], course: Course | None = None) -> dict[str, Any]:
    """Return what a page draws: its charts, the figures by their keys, and the library, if any."""
    figures = {chart.key: figure(chart) for chart in charts}
    if course is not None:
        figures[course.key] = strips(course)
    return {"charts": charts, "figures": figures, "plotly": _plotly() if figures else Markup("")}


def page(template: str, **values: Any) -> str:  # noqa: ANN401 - what the template names
    """Fill a template of this room, with the style sheet; every text is escaped."""
    environment = Environment(
        loader=FunctionLoader(_own_file),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "sort_keys": False}
    found = environment.get_template(template)
    return found.render(style=Markup(_own_file("page.css")), **values)


@cache
def _own_file(name: str) -> str:
    return files("loadgen.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _plotly() -> Markup:
    """Return the plotting library's script; its own text may not end the script element."""
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs().replace("</script", "<\\/script"))


def figure(chart: Chart) -> dict[str, Any]:
    """Return a chart as the plotting library takes it: data and layout, colours still by name."""
    bars = any(line.draw == "bar" for line in chart.lines)
    several = len(chart.lines) > 1
    layout: dict[str, Any] = {
        "xaxis": _axis(chart.x),
        "yaxis": _axis(chart.y),
        "showlegend": several,
        "hovermode": "closest",
        "margin": {"l": 56, "r": 16, "t": 30 if several else 10, "b": 44},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
    }
    if chart.legend:
        layout["legend"]["title"] = {"text": _label(chart.legend), "font": {"size": 12}}
    if bars:
        layout["barmode"] = "stack"
    data = [_trace(line, shape=_SHAPES[i % len(_SHAPES)]) for i, line in enumerate(chart.lines)]
    return {"data": data, "layout": layout}


def height_px(course: Course) -> int:
    """Return the height of a course: its strips with their headings, what is above and below."""
    return len(course.panels) * (_STRIP_PX + _HEADING_PX) + _ABOVE_PX + _BELOW_PX


def strips(course: Course) -> dict[str, Any]:
    """Return a course as the plotting library takes it: y axes stacked over one x axis."""
    count = len(course.panels)
    share = 1 / count
    heading = share * _HEADING_PX / (_STRIP_PX + _HEADING_PX)
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "xaxis": _axis(course.x) | {"anchor": _nth("y", count), "showspikes": True,
                                    "spikemode": "across", "spikethickness": 1,
                                    "spikedash": "dot", "spikecolor": "var(--soft)"},
        "hovermode": "x",
        "hoversubplots": "axis",
        "margin": {"l": 56, "r": 16, "t": _ABOVE_PX, "b": _BELOW_PX},
        "shapes": [_shape(shade) for shade in course.shades],
        "annotations": [_above(x, text) for x, text in course.labels],
    }  # fmt: skip
    for number, panel in enumerate(course.panels, 1):
        top = 1 - (number - 1) * share - heading
        axis = _axis(panel.y) | {"domain": [top - share + heading, top], "nticks": 4}
        layout[_nth("yaxis", number)] = axis | {"title": {"text": ""}}
        layout[_nth("legend", number)] = {
            "orientation": "h", "x": 0, "y": top, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)",
            "title": {"text": f"{_label(panel.title)}:", "side": "left",
                      "font": {"size": 14, "weight": 600}},
        }  # fmt: skip
        for line in panel.lines:
            place = {"yaxis": _nth("y", number), "legend": _nth("legend", number)}
            data.append(_strip_trace(line) | place)
    return {"data": data, "layout": layout}


def _nth(word: str, number: int) -> str:
    """Name an axis or a legend as the plotting library does: yaxis, yaxis2 …."""
    return word if number == 1 else f"{word}{number}"


def _shape(shade: Shade) -> dict[str, Any]:
    fill = "var(--band-measure)" if shade.strong else "var(--band-warmup)"
    return {
        "type": "rect", "x0": shade.low, "x1": shade.high, "yref": "paper", "y0": 0, "y1": 1,
        "fillcolor": fill, "line": {"width": 0}, "layer": "below",
    }  # fmt: skip


def _above(x: float, text: str) -> dict[str, Any]:
    return {
        "x": x, "y": 1, "yref": "paper", "yanchor": "bottom", "text": _label(text),
        "showarrow": False, "font": {"size": 12},
    }  # fmt: skip


def _strip_trace(line: Line) -> dict[str, Any]:
    colour = _colour(line.colour)
    trace: dict[str, Any] = {
        "type": "scatter",
        "name": _label(line.name),
        "x": list(line.x),
        "y": list(line.y),
        "showlegend": True,
    }
    if line.draw == "specks":
        about = [" ".join(_label(part) for part in parts) for parts in line.hover]
        return trace | {
            "mode": "markers",
            "marker": {"color": colour, "size": 4, "opacity": 0.55},
            "text": about,
            "hovertemplate": "%{text}: %{y:.4~g}<extra></extra>",
        }
    unit = _label(line.unit)
    return trace | {
        "mode": "lines",
        "line": {"color": colour, "width": 1.6, "dash": "dash" if line.dashed else "solid"},
        "hovertemplate": f"%{{y:.4~g}} {unit}<extra>{_label(line.name)}</extra>",
    }


def _axis(axis: Axis) -> dict[str, Any]:
    drawn: dict[str, Any] = {"title": {"text": _label(axis.title)}, "type": axis.kind}
    if axis.kind != "category":
        drawn["tickformat"] = ",.0%" if axis.as_percent else ",~f"
    if axis.ticks:
        drawn["tickvals"] = [position for position, _ in axis.ticks]
        drawn["ticktext"] = [_label(text) for _, text in axis.ticks]
    if axis.kind == "log" and axis.low and axis.high:
        # the library wants the ends of a logarithmic axis as powers of ten
        drawn["range"] = [log10(axis.low), log10(axis.high)]
    elif axis.low is not None and axis.high is not None:
        drawn["range"] = [axis.low, axis.high]
    elif axis.low == 0:
        drawn["rangemode"] = "tozero"
    return drawn


def _trace(line: Line, *, shape: str) -> dict[str, Any]:
    colour = _colour(line.colour)
    trace: dict[str, Any] = {
        "name": _label(line.name),
        "x": [_label(x) if isinstance(x, str) else x for x in line.x],
        "y": list(line.y),
        "hoverinfo": "text",
        "hovertext": ["<br>".join(_label(part) for part in parts) for parts in line.hover],
    }
    if line.draw == "bar":
        return trace | {"type": "bar", "marker": {"color": colour}}
    trace |= {
        "type": "scatter",
        "mode": _MODES[line.draw],
        "line": {"color": colour, "width": 2, "dash": "dash" if line.dashed else "solid"},
        "marker": {
            "color": colour,
            "size": 8,
            "symbol": [_SYMBOLS[mark] if mark else shape for mark in line.marks] or shape,
        },
    }
    if line.draw == "step":
        trace["line"]["shape"] = "hv"
    if line.labels:
        trace |= {
            "mode": "lines+markers+text",
            "text": [_label(text) for text in line.labels],
            "textposition": [_BESIDE[i % len(_BESIDE)] for i in range(len(line.labels))],
            "cliponaxis": False,
        }
    bars = _error_bars(line)
    return trace | ({"error_y": bars | {"color": colour}} if bars else {})


def _error_bars(line: Line) -> dict[str, Any] | None:
    """Return the interval around each point as distances up and down; none where unknown."""
    if not any(low is not None for low in line.low):
        return None
    known = [
        None not in (y, low, high) for y, low, high in zip(line.y, line.low, line.high, strict=True)
    ]
    up = [
        max(0.0, (high or 0) - (y or 0)) if there else 0
        for there, y, high in zip(known, line.y, line.high, strict=True)
    ]
    down = [
        max(0.0, (y or 0) - (low or 0)) if there else 0
        for there, y, low in zip(known, line.y, line.low, strict=True)
    ]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down,
            "thickness": 1.2, "width": 4}  # fmt: skip


def _colour(name: str) -> str:
    """Return the style sheet's variable for a colour's name; a ramp's place picks its step."""
    if name.startswith("ramp "):
        return f"var(--ramp-{round(float(name.removeprefix('ramp ')) * _RAMP_STEPS)})"
    return f"var(--{name})"


def _label(text: str) -> str:
    """Escape what the plotting library would take for its own small markup."""
    return escape(text, quote=False)
