r"""Text from policies, tools and tasks, made harmless for a terminal or a page.

Invariant: what comes out holds no control character but the newline (and not that, if asked), and nothing that reverses or
hides text; every such character is written out as an escape, so nothing is lost to the reader.
"""

import html
import re

_UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def inert(text: str) -> str:
    r"""The text with control and direction characters written out: ESC becomes ``\x1b``. Newlines stay."""
    return _UNSAFE.sub(_escape, text)


def one_line(text: str, max_chars: int = 200) -> str:
    r"""The same on one line, newlines written as ``\n``, cut with a visible mark."""
    line = inert(text).replace("\n", "\\n")
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"


def as_html(text: str) -> str:
    """The same for the body or a quoted attribute of a page."""
    return html.escape(inert(text), quote=True)


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
