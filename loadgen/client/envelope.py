"""What all requests of a run have in common on the wire: everything but their bodies."""

from collections.abc import AsyncIterator, Mapping

import httpx

from loadgen.client.transport import WIRE_BYTES


class Envelope:
    """Makes POST requests of bodies, quicker than httpx does it and with the body in memory once.

    Thousands are kept ready: such a request holds the bytes that go out, and its body for a
    transport that wants one is a part of them.
    """

    def __init__(self, url: httpx.URL, headers: Mapping[str, str]) -> None:
        empty = httpx.Request("POST", url, headers=headers, content=b"")
        self._url = url
        self._headers = [pair for pair in empty.headers.raw if pair[0].lower() != b"content-length"]
        lines = [b"POST " + url.raw_path + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in self._headers]
        self._head = b"\r\n".join(lines) + b"\r\nContent-Length: "

    def around(self, content: bytes) -> httpx.Request:
        """Return a request whose body is ``content``."""
        length = b"%d" % len(content)
        head = self._head + length + b"\r\n\r\n"
        data = head + content
        return httpx.Request(
            "POST",
            self._url,
            headers=[*self._headers, (b"Content-Length", length)],
            stream=_Body(data, len(head)),
            extensions={WIRE_BYTES: data},
        )


class _Body(httpx.AsyncByteStream):
    """What follows the first ``start`` bytes."""

    __slots__ = ("_data", "_start")

    def __init__(self, data: bytes, start: int) -> None:
        self._data = data
        self._start = start

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data[self._start :]
