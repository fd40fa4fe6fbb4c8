"""One request on the wire."""
