"""A view in each markup: nothing a server said acts on it, and no figure is lost."""

import html.parser
import json
import re

import pytest
from report_make import HOSTILE, error, failing, level, missed, summary, view

from loadgen.report.grid import Table
from loadgen.report.html import figure, render_html
from loadgen.report.markdown import escape, render_markdown
from loadgen.report.terminal import render_terminal
from loadgen.report.view import View

PLOTTING_LIBRARY = re.compile(r"<script>/\*\*.*?</script>", re.DOTALL)


def hostile_view() -> View:
    """Every text that may come from a server or a scenario is hostile."""
    bad = level(
        3,
        label=HOSTILE,
        concurrency=None,
        errors=[error(error_class=HOSTILE, outcome=HOSTILE, fault=HOSTILE, sample=HOSTILE)],
        outcomes={"ok": 380, "refused": 20},
        finish_reasons={HOSTILE: 1},
        token_sources={HOSTILE: 1},
        flags={HOSTILE: 1},
        objectives=[missed(objective=HOSTILE, verdict=HOSTILE)],
        stop_reason=HOSTILE,
        invalid=HOSTILE,
        class_=HOSTILE,
        client={HOSTILE: HOSTILE},
    )
    target = dict.fromkeys(("url", "model", "engine", "engine_version", HOSTILE), HOSTILE)
    return view(bad, name=HOSTILE, target=target, warnings=[HOSTILE], started_at=HOSTILE)


class Elements(html.parser.HTMLParser):
    """Counts elements and collects the texts of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.inside = tag
        self.attributes += [name for name, _ in attrs]

    def handle_endtag(self, _tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts.append(data)


def tables_of(shown: View) -> list[Table]:
    return [shown.levels, shown.errors, shown.objectives, shown.outcomes, shown.lengths]


def test_a_hostile_server_adds_no_element_to_the_page() -> None:
    hostile, tame = Elements(render_html(hostile_view())), Elements(render_html(view()))
    assert hostile.tags.count("script") == tame.tags.count("script") == 2
    assert not [name for name in hostile.attributes if name.startswith("on")]
    assert "alert(1)" not in "".join(tag for tag in hostile.tags)


def test_the_charts_data_cannot_end_its_script() -> None:
    data = Elements(render_html(hostile_view())).scripts[-1]
    assert "</" not in data
    assert "const figures = {" in data


def test_the_page_fetches_nothing() -> None:
    page = PLOTTING_LIBRARY.sub("", render_html(view()))
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)\s*=|@import|url\(", page)


def test_the_page_holds_the_tables_figures() -> None:
    shown, page = view(), render_html(view())
    for table in tables_of(shown):
        assert all(html.escape(c.text) in page for row in table.rows for c in row)


def test_a_charts_labels_are_not_taken_for_markup() -> None:
    chart = next(c for c in hostile_view().charts if c.key == "outcomes")
    text = json.dumps(figure(chart), allow_nan=False)
    assert "<script" not in text
    assert "&lt;script" in text


def test_every_figure_is_strict_json() -> None:
    for shown in (view(), hostile_view(), view(failing())):
        for chart in shown.charts:
            json.dumps(figure(chart), allow_nan=False)


def test_markdown_rows_have_as_many_cells_as_headings() -> None:
    lines = render_markdown(hostile_view()).splitlines()
    rows = [re.split(r"(?<!\\)\|", line) for line in lines if line.startswith("|")]
    blocks = "\n".join(lines).split("## ")
    for block in blocks:
        widths = {
            len(re.split(r"(?<!\\)\|", line)) for line in block.splitlines() if line[:1] == "|"
        }
        assert len(widths) <= 1
    assert rows


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", r"a\|b"),
        ("<b>", r"\<b\>"),
        ("`x`", r"\`x\`"),
        ("[a](b)", r"\[a\](b)"),
        ("http://x", r"http\://x"),
        ("www.x", r"www\.x"),
        ("a\\|b", r"a\\\|b"),
        ("@you #1", r"\@you \#1"),
        ("_a_ base_url", r"\_a\_ base_url"),
    ],
    ids=[
        "pipe",
        "tag",
        "code",
        "link",
        "url",
        "www",
        "backslash before a pipe",
        "mention",
        "stress",
    ],
)
def test_markdown_acts_on_nothing(text: str, escaped: str) -> None:
    assert escape(text) == escaped


def test_markdown_carries_figures_and_formulas() -> None:
    shown = view()
    text = render_markdown(shown)
    assert all(escape(c.text) in text for row in shown.levels.rows for c in row)
    assert "- **TTFT**: first − sent" in text


@pytest.mark.parametrize("width", [120, 80, 40], ids=lambda width: f"{width} columns")
@pytest.mark.parametrize("make", [view, hostile_view], ids=["ordinary", "hostile"])
def test_no_line_is_wider_than_the_terminal(make: object, width: int) -> None:
    from rich.cells import cell_len

    assert max(map(cell_len, render_terminal(make(), width=width).splitlines())) <= width


def test_the_table_of_levels_is_one_piece_on_120_columns() -> None:
    worst = level(tokens_per_chunk=4.0, outcomes={"ok": 300, "refused": 100}, error_rate=0.25)
    lines = render_terminal(view(worst)).splitlines()
    header = lines[lines.index("Levels") + 1].split()
    assert (header[0], header[-1]) == ("concurrency", "n")


@pytest.mark.parametrize("width", [120, 60], ids=["wide", "narrow"])
def test_the_terminal_cuts_no_figure(width: int) -> None:
    shown = view()
    text = render_terminal(shown, width=width)
    assert all(c.text in text for row in shown.levels.rows for c in row)
    assert "…" not in text


def test_the_first_line_of_text_is_the_verdict() -> None:
    shown = view(failing())
    assert render_terminal(shown).splitlines()[0] == shown.verdict.text


def test_no_escape_code_reaches_a_pipe() -> None:
    assert "\x1b" not in render_terminal(hostile_view())


def test_colours_add_escape_codes_of_ours_alone() -> None:
    coloured = render_terminal(hostile_view(), colour=True)
    bare = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines()]
    assert bare == render_terminal(hostile_view()).splitlines()
    assert "\x1b[1;31m" in coloured


@pytest.mark.parametrize("render", [render_html, render_markdown, render_terminal])
def test_a_run_without_one_success_renders(render: object) -> None:
    text = render(view(failing(n=40)))
    assert "server_error" in text.replace("\\", "")
    assert "nan" not in text.lower().split()


@pytest.mark.parametrize("render", [render_html, render_markdown, render_terminal])
def test_a_run_without_a_level_renders(render: object) -> None:
    from loadgen.report.view import build_view

    empty = summary(level())
    empty.levels.clear()
    assert "nothing was measured" in render(build_view(empty))
