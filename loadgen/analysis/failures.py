"""What became of a level's arrivals: outcomes, error classes, whose fault, and one sample each."""

from typing import Any

import pandas as pd

from loadgen.analysis.summary import ErrorClass
from loadgen.record import FAILED_OUTCOMES, Outcome, fault_of


def outcome_counts(requests: pd.DataFrame) -> dict[str, int]:
    """Count the arrivals of each outcome; together they are all arrivals."""
    return _counted(requests["outcome"])


def counts_of_lists(lists: "pd.Series[Any]") -> dict[str, int]:
    """Count the entries of a column of lists (flags, finish reasons), the most frequent first."""
    return _counted(lists.explode())


def counts_of(column: "pd.Series[Any]") -> dict[str, int]:
    """Count the values of a column, null apart, the most frequent first."""
    return _counted(column)


def failed(requests: pd.DataFrame) -> "pd.Series[bool]":
    """Say which requests failed: refused, timeout, broken or truncated."""
    return requests["outcome"].isin(list(FAILED_OUTCOMES))


def error_rate(requests: pd.DataFrame) -> float | None:
    """Error rate = failed / (ok + failed); None where there are neither."""
    failures = int(failed(requests).sum())
    answered = failures + int((requests["outcome"] == Outcome.OK).sum())
    return failures / answered if answered else None


def error_classes(requests: pd.DataFrame) -> list[ErrorClass]:
    """Group the failures and client faults by class, the most frequent first."""
    wrong = requests[failed(requests) | (requests["outcome"] == Outcome.CLIENT_FAULT)]
    named = wrong.assign(error_class=wrong["error_class"].fillna(wrong["outcome"]))
    classes = [
        _error_class(str(outcome), str(name), group)
        for (outcome, name), group in named.groupby(["outcome", "error_class"])
    ]
    return sorted(classes, key=lambda found: (-found.n, found.error_class, found.outcome))


def client_faults(requests: pd.DataFrame) -> str | None:
    """Say why a level must not be used, where the client failed; None where it did not."""
    faults = requests[requests["outcome"] == Outcome.CLIENT_FAULT]
    if faults.empty:
        return None
    classes = ", ".join(_counted(faults["error_class"].fillna("client_fault")))
    return f"the client itself failed in {len(faults)} requests ({classes})"


def _error_class(outcome: str, name: str, group: pd.DataFrame) -> ErrorClass:
    in_order = group.sort_values("due_ns", kind="stable")
    samples, statuses = in_order["error"].dropna(), in_order["http_status"].dropna()
    return ErrorClass(
        error_class=name,
        outcome=outcome,
        fault=str(fault_of(outcome, name)),
        n=len(group),
        http_status=int(statuses.mode().iloc[0]) if len(statuses) else None,
        sample=str(samples.iloc[0]) if len(samples) else None,
    )


def _counted(values: "pd.Series[Any]") -> dict[str, int]:
    counts = pd.Series(values.to_list(), dtype=object).dropna().astype(str).value_counts()
    ordered = sorted(counts.items(), key=lambda item: (-int(item[1]), str(item[0])))
    return {str(name): int(number) for name, number in ordered}
