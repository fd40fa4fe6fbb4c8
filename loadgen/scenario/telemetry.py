"""How the server is watched while it is measured: its own metrics page and its GPUs."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from loadgen.scenario import url as urls
from loadgen.scenario.fields import Part, Seconds, write_duration

AUTO, OFF, NVML = "auto", "off", "nvml"
SHORTEST_S = 0.1
_OFF = {"server": OFF, "gpu": OFF}


def _every(seconds: float) -> float:
    if seconds < SHORTEST_S:
        raise ValueError("must be 100ms or longer: a page takes the server some work")
    return seconds


class Telemetry(Part):
    """What is sampled beside the load, and how often; ``off`` for all of it stands for both.

    server: its metrics page: "auto" (the engine's own, below the target), "off", or an address.
    gpu: "auto" (this machine's, where the target is on it), "off", "nvml" (this machine's), or the
        address of a DCGM exporter.
    """

    every_s: Annotated[Seconds, AfterValidator(_every)] = Field(
        default=1.0, validation_alias="every"
    )
    server: str = AUTO
    gpu: str = AUTO

    @model_validator(mode="before")
    @classmethod
    def _from_a_word(cls, value: object) -> object:
        if value == OFF or value is False:
            return _OFF
        if value == AUTO or value is True:
            return {}
        if isinstance(value, Mapping | Telemetry):
            return value
        raise ValueError("write off, or a mapping like {every: 1s, server: auto, gpu: off}")

    @field_validator("server")
    @classmethod
    def _a_page(cls, value: str) -> str:
        return _one_of(value, (AUTO, OFF), like="http://localhost:8000/metrics")

    @field_validator("gpu")
    @classmethod
    def _gpus(cls, value: str) -> str:
        return _one_of(value, (AUTO, OFF, NVML), like="http://gpu-host:9400/metrics")

    @property
    def off(self) -> bool:
        """Say that nothing is sampled."""
        return self.server == self.gpu == OFF

    @property
    def plain(self) -> str | dict[str, Any]:
        """As the file writes it, credentials masked."""
        if self.off:
            return OFF
        return {
            "every": write_duration(self.every_s),
            "server": _masked(self.server),
            "gpu": _masked(self.gpu),
        }


def _one_of(value: str, words: tuple[str, ...], *, like: str) -> str:
    if value in words:
        return value
    if "/" not in value and ":" not in value:
        raise ValueError(f"'{value}' will not do; write {', '.join(words)} or a page's address")
    if problem := urls.url_problem(value):
        raise ValueError(re.sub(r"http://localhost:8000\b", like, problem))
    return value


def _masked(value: str) -> str:
    return urls.masked_url(value) if "://" in value else value
