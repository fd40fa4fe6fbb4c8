import httpx
import pytest
from scenario_make import make_scenario

from loadgen.scenario.model import Target
from loadgen.scenario.url import masked_url, root_url, url_problem


@pytest.mark.parametrize(
    ("given", "endpoint"),
    [
        ("http://h:8000", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1/", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1/chat/completions", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1/completions/", "http://h:8000/v1/chat/completions"),
        ("https://gw/team-a", "https://gw/team-a/v1/chat/completions"),
        ("https://gw/team-a/v1/", "https://gw/team-a/v1/chat/completions"),
        ("https://gw/api/v3", "https://gw/api/v3/chat/completions"),
        ("https://gw/v1beta/openai/", "https://gw/v1beta/openai/chat/completions"),
        ("https://r.azure.com/openai/deployments/x?api-version=2024-10-21",
         "https://r.azure.com/openai/deployments/x/chat/completions?api-version=2024-10-21"),
        ("https://r.azure.com/openai/v1/", "https://r.azure.com/openai/v1/chat/completions"),
        ("http://h/v1?tenant=a", "http://h/v1/chat/completions?tenant=a"),
        ("http://[::1]:8000", "http://[::1]:8000/v1/chat/completions"),
        ("http://me:pw@h:8000", "http://h:8000/v1/chat/completions"),
    ],
)  # fmt: skip
def test_c14_every_way_to_write_an_address_hits_one_endpoint(given: str, endpoint: str) -> None:
    assert Target(url=given).endpoint_url() == endpoint


@pytest.mark.parametrize(
    "host",
    ["localhost", "gpu-01.lab.", "a_b", "-a", "10.0.0.7", "1.2.3", "[fe80::1%eth0]", "bücher.de",
     "中国.icom.museum", "xn--bcher-kva.de", f"{'a' * 63}.{'b' * 63}"],
)  # fmt: skip
def test_any_host_that_may_exist_will_do_and_can_be_looked_up(host: str) -> None:
    assert url_problem(f"http://{host}:8000/v1") is None
    assert httpx.URL(f"http://{host}:8000/v1").host.encode("idna")


def test_each_endpoint_has_its_path() -> None:
    target = Target(url="http://h", endpoint="completions")
    assert target.endpoint_url() == "http://h/v1/completions"
    assert target.endpoint_url("chat") == "http://h/v1/chat/completions"
    assert target.endpoint_url("models") == "http://h/v1/models"


@pytest.mark.parametrize(
    ("given", "root"),
    [("http://h:1", "http://h:1"), ("http://h:1/v1/", "http://h:1"),
     ("http://h/a/v1?x=1", "http://h/a"), ("http://u:p@h/v1", "http://h")],
)  # fmt: skip
def test_health_and_metrics_lie_beside_v1(given: str, root: str) -> None:
    assert root_url(given) == root


def test_credentials_become_basic_auth_and_are_masked() -> None:
    target = make_scenario(target={"url": "http://me:p%40ss@h:8000"}).target
    assert target.basic_auth is not None
    assert (target.basic_auth.user, target.basic_auth.password) == ("me", "p@ss")
    assert target.masked_url == "http://***@h:8000"
    assert Target(url="http://h").basic_auth is None


@pytest.mark.parametrize(
    ("given", "shown"),
    [("http://h/v1?api-version=2", "http://h/v1?api-version=2"),
     ("http://h/v1?api_key=hush", "http://h/v1?api_key=***"),
     ("http://a@b:c@h", "http://***@h"), ("http://[", "***")],
)  # fmt: skip
def test_a_masked_address_shows_no_secret(given: str, shown: str) -> None:
    assert masked_url(given) == shown


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("", "is empty"),
        ("localhost:8000", "has no scheme; did you mean 'http://localhost:8000'?"),
        ("me:hush@h", "has no scheme; did you mean 'http://h'?"),
        ("ftp://h", "has the scheme 'ftp'; only http and https"),
        ("http://", "names no host"),
        ("http://:80", "names no host"),
        ("http://h:99999", "is not a URL"),
        ("http://h:port", "is not a URL"),
        ("http://[::1", "is not a URL"),
        ("http://a b", "holds a space"),
        ("http://h/\nx", "holds a space"),
        ("http://h/#x", "has a part after '#'"),
        ("http://gpu\u200b:8000", "holds a space or a character that does not print"),
        ("http://h/\udcff", "holds a space or a character that does not print"),
        ("http://a..b:8000", "names the host 'a..b', which is no name: its parts have 1 to 63"),
        ("http://.a", "names the host '.a', which is no name"),
        (f"http://x:hush@{'a' * 64}.b", f"names the host '{'a' * 64}.b', which is no name"),
        (f"http://{'ü' * 60}", f"names the host '{'ü' * 60}', which is no name"),
        ("http://256.1.1.1", "names the host '256.1.1.1', which is not an IPv4 address"),
        ("http://[v1.a]", "names the host 'v1.a', which is not an IPv6 address"),
        ("http://☃.net", "names the host '☃.net', which is no name"),
        ("http://xn--zzzzzz", "names the host 'xn--zzzzzz', which is no name"),
    ],
)
def test_an_address_that_will_not_do_says_why(given: str, problem: str) -> None:
    found = url_problem(given)
    assert found is not None
    assert found.startswith(problem)
    assert "hush" not in found
