"""A run's summary as a file for programs."""

from loadgen.analysis.serial import to_json
from loadgen.analysis.summary import Summary


def render_json(summary: Summary) -> str:
    """Return the summary as strict JSON: null where a number is not known, never NaN."""
    return to_json(summary).decode()
