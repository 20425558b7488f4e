"""Renders records to tokens and reads tokens as turns; never encodes sampled text again."""

from headrace.harness.chatml import ChatMLHarness, ChatMLOptions, open_harness
from headrace.harness.codec import TextCodec
from headrace.harness.writing import WritingHarness

__all__ = ["ChatMLHarness", "ChatMLOptions", "TextCodec", "WritingHarness", "open_harness"]
