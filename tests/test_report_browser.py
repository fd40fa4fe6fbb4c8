"""The page as a browser shows it; needs chromium."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from compare_make import compared, noise, timed
from report_make import error, failing, level, summary, view

from loadgen.report.compare import comparison_page
from loadgen.report.html import render_html
from loadgen.report.view import View

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--virtual-time-budget=8000",  # lets every timer of the page run out, without the wait
)
WATCH = """<head><script>
let blocked = 0;
addEventListener("securitypolicyviolation", () => { blocked += 1; });
addEventListener("load", () => setTimeout(() => {
  const asked = performance.getEntriesByType("resource").length;
  document.title = `asked ${asked} blocked ${blocked}`;
}, 500));
</script>"""


def browse(page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    profile = page.with_name("profile")
    return subprocess.run(
        [CHROMIUM, *QUIET, f"--user-data-dir={profile}", *flags, page.as_uri()],
        capture_output=True, text=True, check=True, timeout=90,
    )  # fmt: skip


def page_of(shown: View, at: Path) -> Path:
    page = at / "report.html"
    page.write_text(render_html(shown))
    return page


@pytest.mark.parametrize(
    ("shown", "least"),
    [
        pytest.param(view(), 8, id="four levels"),
        pytest.param(view(level()), 1, id="one level"),
        pytest.param(view(level(0), level(1, concurrency=None)), 8, id="both kinds of load"),
        pytest.param(view(failing()), 1, id="F14 nothing ok"),
    ],
)
def test_every_chart_is_drawn_without_an_error(shown: View, least: int, tmp_path: Path) -> None:
    done = browse(page_of(shown, tmp_path), "--dump-dom", "--enable-logging=stderr", "--v=0")
    charts = re.findall(r'class="plot js-plotly-plot"', done.stdout)
    assert len(charts) == len(shown.charts) >= least
    assert done.stdout.count('class="main-svg"') >= len(charts)
    assert "CONSOLE" not in done.stderr


@pytest.mark.parametrize(
    ("extra", "title"),
    [
        pytest.param("", "asked 0 blocked 0", id="the page as it is"),
        pytest.param("<img src='http://127.0.0.1:9/x.png'>", "asked 1 blocked 1", id="a foreign"
                     " picture is blocked, and seen by this test"),
    ],
)  # fmt: skip
def test_the_page_asks_the_network_for_nothing(extra: str, title: str, tmp_path: Path) -> None:
    page = page_of(view(), tmp_path)
    watched = page.read_text().replace("<head>", WATCH, 1).replace("</main>", f"{extra}</main>", 1)
    page.write_text(watched)
    assert f"<title>{title}</title>" in browse(page, "--dump-dom").stdout


def test_a_comparison_draws_its_curves_and_asks_for_nothing(tmp_path: Path) -> None:
    made = {name: summary(level(), level(1, concurrency=16)) for name in ("fp16", "int4")}
    page = tmp_path / "comparison.html"
    page.write_text(
        comparison_page(compared(timed(noise(20, seed=1)), timed(noise(20, seed=2))), made)
    )
    done = browse(page, "--dump-dom", "--enable-logging=stderr", "--v=0")
    assert done.stdout.count('class="plot js-plotly-plot"') == 4
    assert "CONSOLE" not in done.stderr
    page.write_text(page.read_text().replace("<head>", WATCH, 1))
    assert "<title>asked 0 blocked 0</title>" in browse(page, "--dump-dom").stdout


def test_a_servers_script_does_not_run(tmp_path: Path) -> None:
    attack = "</script><script>document.title='owned'</script><img src=x onerror=\"a\">"
    shown = view(level(label=attack, concurrency=None, errors=[error(sample=attack)]), name=attack)
    done = browse(page_of(shown, tmp_path), "--dump-dom")
    assert "<title>owned</title>" not in done.stdout
    assert "<img" not in done.stdout
