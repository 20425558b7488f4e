"""Renders records to tokens and reads tokens as turns; never encodes sampled text again."""

from headrace.harness.chatml import ChatMLHarness, ChatMLOptions, open_harness
from headrace.harness.codec import TextCodec

__all__ = ["ChatMLHarness", "ChatMLOptions", "TextCodec", "open_harness"]
