"""A proxy that the environment names: taken as curl takes it, said, and blamed where it may be."""

from pathlib import Path
from typing import Any

import pytest
from drive import loadgen, measure
from serve import Asked, Out, Script, Server, answer, scripted
from server_make import prober

from loadgen.client.stock import proxy_for
from loadgen.errors import LoadgenError, PreflightFailed, UsageError
from loadgen.run.events import Notice

HOST = "staging.example"
AWAY = f"http://{HOST}:8000"
NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _no_proxy_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("variables", "url", "shown"),
    [
        ({"HTTP_PROXY": "proxy:3128"}, "http://proxy:3128", "http://proxy:3128 (HTTP_PROXY)"),
        ({"http_proxy": "http://me:hush@proxy:1/"}, "http://me:hush@proxy:1/",
         "http://proxy:1 (http_proxy)"),
        ({"ALL_PROXY": "me:hush@[::1]:1"}, "http://me:hush@[::1]:1", "http://[::1]:1 (ALL_PROXY)"),
        ({"HTTP_PROXY": "big:1", "http_proxy": "small:1"}, "http://small:1",
         "http://small:1 (http_proxy)"),
        ({"all_proxy": "socks5://all:1", "HTTP_PROXY": "HTTPS://own:1"}, "HTTPS://own:1",
         "HTTPS://own:1 (HTTP_PROXY)"),
    ],
    ids=["no scheme", "with a password", "for all schemes", "small letters win", "its own first"],
)  # fmt: skip
def test_a_proxy_is_taken_as_curl_takes_it_and_shown_without_its_password(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, shown: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    proxy = proxy_for(AWAY)
    assert proxy is not None
    assert (proxy.url, str(proxy)) == (url, shown)
    assert "hush" not in repr(proxy)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("socks5://me:hush@proxy:1080", "has the scheme 'socks5'; only http and https are spoken"),
        ("socks5h://proxy:1080", "has the scheme 'socks5h'"),
        ("ftp://proxy", "has the scheme 'ftp'"),
        ("http://me:hush@proxy:port", "is not a URL; write it like http://proxy:3128;"),
        ("proxy..lan:3128", "names the host 'proxy..lan', which is no name"),
        ("http://", "names no host"),
        ("proxy 3128", "holds a space"),
    ],
)
@pytest.mark.parametrize("name", ["HTTP_PROXY", "all_proxy"])
def test_a_proxy_that_will_not_do_is_refused_by_the_name_of_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, problem: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as caught:
        proxy_for(AWAY)
    said = str(caught.value)
    assert said.startswith(f"{name}: {problem}")
    assert said.endswith(f"to reach it without a proxy, list {HOST} in NO_PROXY")
    assert "hush" not in said
    monkeypatch.setenv("NO_PROXY", HOST)
    assert proxy_for(AWAY) is None


def test_a_run_through_a_proxy_says_so_and_keeps_its_password_to_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    events: list[Any] = []
    with scripted(answer) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"me:hush-0000@127.0.0.1:{proxy.port}")
        manifest, records = measure(AWAY, tmp_path / "run", events=events)
        assert proxy.generations[0].path.startswith(AWAY)
        assert "proxy-authorization" in proxy.generations[0].headers
    assert {row["outcome"] for row in records} == {"ok"}
    note = (
        f"through proxy http://127.0.0.1:{proxy.port} (HTTP_PROXY), "
        "stock transport: user-space stamps"
    )
    assert note in manifest["warnings"]
    assert note in [event.text for event in events if isinstance(event, Notice)]
    assert manifest["target"]["proxy"] == f"http://127.0.0.1:{proxy.port}"
    assert not [path for path in (tmp_path / "run").iterdir() if b"hush" in path.read_bytes()]


def test_a_run_without_a_proxy_has_no_note_of_one(tmp_path: Path) -> None:
    with scripted(answer) as server:
        manifest, _ = measure(server.url, tmp_path / "run")
    assert manifest["target"]["proxy"] is None
    assert not [text for text in manifest["warnings"] if "proxy" in text]


def refusing(status: int) -> Script:
    async def script(asked: Asked, out: Out) -> None:
        await out.whole(status, b"<html>denied</html>", kind="text/html")

    return script


def failing(proxy: Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
            **target: Any) -> str:  # fmt: skip
    """Run through a proxy, which comes to nothing; return what is said."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://me:hush@127.0.0.1:{proxy.port}")
    with pytest.raises(LoadgenError) as caught:
        measure(url, tmp_path / "run", target={"url": url, **target})
    assert caught.value.exit_code == 3
    assert not (tmp_path / "run").exists()
    said = str(caught.value)
    assert "hush" not in said
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("status", "target", "words"),
    [
        (407, {}, "refuses (HTTP 407); give its user and password in http_proxy"),
        (407, {"model": "m"}, "refuses (HTTP 407); give its user and password in http_proxy"),
        (403, {}, "a key is missing (LOADGEN_API_KEY), or the proxy does not let you there"),
        (502, {}, "HTTP 502, from the server or from proxy"),
        (503, {}, "HTTP 503, from the server or from proxy"),
        (504, {}, "HTTP 504, from the server or from proxy"),
    ],
)
def test_what_a_proxy_refuses_is_not_laid_on_the_server_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int, target: Any, words: str
) -> None:
    url = f"{AWAY}?tenant=a"  # the path of the list ends otherwise then: ``gets`` is asked for it
    with scripted(refusing(status), gets=refusing(status)) as proxy:
        said = failing(proxy, url, tmp_path, monkeypatch, **target)
    assert words in said
    assert f"proxy http://127.0.0.1:{proxy.port} (http_proxy)" in said
    assert f"list {HOST} in NO_PROXY" in said


@pytest.mark.parametrize("status", [403, 407])
def test_a_refusal_of_the_probe_alone_names_the_proxy_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int
) -> None:
    with scripted(refusing(status)) as proxy:
        said = failing(proxy, AWAY, tmp_path, monkeypatch)
    assert f"proxy http://127.0.0.1:{proxy.port} (http_proxy)" in said


def test_a_key_that_is_wanted_behind_a_proxy_is_still_the_servers_wish(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with scripted(refusing(401)) as proxy:
        said = failing(proxy, AWAY, tmp_path, monkeypatch)
    assert said == f"{AWAY}: wants a key (HTTP 401); set LOADGEN_API_KEY, or give its header " + (
        "with --header"
    )


def test_a_busy_server_behind_a_proxy_is_measured_and_the_doubt_noted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with scripted(refusing(503)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{proxy.port}")
        manifest, records = measure(AWAY, tmp_path / "run")
    assert {row["error_class"] for row in records} == {"overloaded"}
    doubt = f"from the server or from proxy http://127.0.0.1:{proxy.port} (HTTP_PROXY)); going on"
    assert [text for text in manifest["warnings"] if text.endswith(doubt)]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_down_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: str
) -> None:
    said = failing(Server(port=9), f"{scheme}://{HOST}:8000", tmp_path, monkeypatch)
    assert f": no connection through proxy http://127.0.0.1:9 ({scheme}_proxy) (" in said
    assert "is the proxy up? to reach it without a proxy, list" in said


@pytest.mark.parametrize(
    ("status", "mend"),
    [(407, "give its user and password in https_proxy"), (502, "is the server up, and does the")],
)
def test_a_proxy_that_makes_no_tunnel_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int, mend: str
) -> None:
    with scripted(answer, gets=refusing(status)) as proxy:
        said = failing(proxy, f"https://{HOST}", tmp_path, monkeypatch)
    assert f"proxy http://127.0.0.1:{proxy.port} (https_proxy) refuses ({status} X)" in said
    assert mend in said


def test_a_socks_proxy_is_one_line_and_exit_2(tmp_path: Path) -> None:
    env = {"ALL_PROXY": "socks5://me:hush@127.0.0.1:1080"}
    for given in (["run", "--url", AWAY, "-c", "1"], ["server", "wait", "--url", AWAY]):
        done = loadgen(*given, env=env, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("loadgen: ALL_PROXY: has the scheme 'socks5'")
        assert done.stderr.count("\n") == 1
        assert "hush" not in done.stderr


@pytest.mark.slow
def test_a_page_elsewhere_is_asked_for_through_its_proxy_or_refused_before_the_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there = {"server": f"{AWAY}/metrics", "gpu": "off"}
    with scripted(answer) as server, scripted(answer) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"me:hush@127.0.0.1:{proxy.port}")
        measure(server.url, tmp_path / "run", telemetry=there)
        assert {asked.path for asked in proxy.asked} == {f"{AWAY}/metrics"}
        assert "proxy-authorization" in proxy.asked[0].headers
        asked = len(server.asked)
        monkeypatch.setenv("HTTP_PROXY", "socks5://proxy")
        with pytest.raises(UsageError, match="HTTP_PROXY: has the scheme"):
            measure(server.url, tmp_path / "other", telemetry=there)
        assert len(server.asked) == asked
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("status", [403, 407])
async def test_a_wait_for_a_server_names_the_proxy_it_goes_through(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    with scripted(answer, gets=refusing(status)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{proxy.port}")
        asking = prober(AWAY)
        with pytest.raises(PreflightFailed, match=rf"proxy http://127.0.0.1:{proxy.port} \("):
            await asking.failure()
        await asking.aclose()
    monkeypatch.setenv("HTTP_PROXY", "127.0.0.1:9")
    asking = prober(AWAY)
    failure = await asking.failure()
    await asking.aclose()
    assert failure is not None
    assert failure.text.startswith("no answer through proxy http://127.0.0.1:9 (HTTP_PROXY) (")
