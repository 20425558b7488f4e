"""What every choice by name has in common: its `kind`, and no number that belongs to another."""

import msgspec


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """Base of all choices; `kind` names one."""


def tag_of(choice: Choice) -> str:
    """The choice's `kind`."""
    return str(type(choice).__struct_config__.tag)
