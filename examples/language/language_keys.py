"""The keys of task=language alone."""

from typing import Annotated

from msgspec import Meta

from ninefold.types import Section


class LanguageKeys(Section, kw_only=True):
    padding: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None
    """The number of tokens in a target that are ignored, such as -100 (task=language); null:
    none."""
