"""Quality beside speed: a golden set of questions whose answers are known."""

from typing import Self

from pydantic import Field, model_validator

from loadgen.scenario.fields import Part, Share, Switch
from loadgen.scenario.prompts import FileName

MOST_AMONG_LOAD = 0.5


class Quality(Part):
    """A golden set, asked among the load or in a pass of its own after each level.

    share: this part of all requests are questions of the set. pass: each question once, at the
    level's own load, when the level is over.
    """

    golden: FileName = Field(validation_alias="set")
    share: Share | None = None
    pass_: Switch = Field(default=False, validation_alias="pass")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.share is not None) == self.pass_:
            raise ValueError("give either share, like share: 5%, or pass: true")
        if self.share is not None and not 0 < self.share <= MOST_AMONG_LOAD:
            raise ValueError("share must be above 0 and at most 50%: the rest is the load")
        return self
