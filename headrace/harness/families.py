"""A model family: its tokenizer as the `renderers` package wants it, and the renderer itself.

Invariant: the renderer encodes only text of the configuration and holes. A hole is a control token of its own, added to a
copy of the tokenizer, that stands for text to come: it merges with nothing, so what surrounds it is exactly what the
family's template places around any text.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tokenizers import AddedToken, Tokenizer

from headrace.errors import ConfigError
from headrace.harness.codec import TextCodec

HOLES = tuple(f"<|hole {place}|>" for place in range(4))
TEMPLATE_FILE, TOKENIZER_CONFIG = "chat_template.jinja", "tokenizer_config.json"
Message = dict[str, Any]
Spec = dict[str, Any]


class Renderer(Protocol):
    """What is used of a renderer; each of the package's has it."""

    def render(self, messages: Any, *, tools: Any = None, add_generation_prompt: bool = False) -> Any: ...

    def parse_response(
        self, token_ids: list[int], *, tools: Any = None, prompt_ids: list[int] | None = None
    ) -> Any: ...

    def get_stop_token_ids(self) -> list[int]: ...

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: Any,
        *,
        tools: Any = None,
    ) -> Any: ...


class FamilyTokenizer:
    """A tokenizer with holes.

    Attributes:
        holes: id of each hole, by its literal.
        name_or_path: empty; the family is named by the configuration, never guessed from a model's name.
        chat_template: Jinja source, for the family `default`.
    """

    name_or_path = ""
    unk_token_id: int | None = None

    def __init__(self, codec: TextCodec, config: Mapping[str, Any], chat_template: str) -> None:
        self._tokenizer = Tokenizer.from_str(codec.source.decode("utf-8"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.add_special_tokens([AddedToken(hole, special=True, normalized=False) for hole in HOLES])
        self.holes = {hole: self._tokenizer.token_to_id(hole) for hole in HOLES}
        self._config = dict(config)
        self.chat_template = chat_template
        self.all_special_tokens = sorted(codec.controls)
        self.eos_token = _text_of(config.get("eos_token"))
        self.eos_token_id = None if self.eos_token is None else self._tokenizer.token_to_id(self.eos_token)

    @classmethod
    def from_folder(cls, codec: TextCodec, folder: Path) -> "FamilyTokenizer":
        """With what `tokenizer_config.json` and `chat_template.jinja` of the folder say, where they exist."""
        config = _read_json(folder / TOKENIZER_CONFIG)
        template = folder / TEMPLATE_FILE
        source = template.read_text(encoding="utf-8") if template.is_file() else config.get("chat_template") or ""
        return cls(codec, config, source if isinstance(source, str) else "")

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        """Ids of the text, control literals as control tokens, without tokens around it."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int], *_: Any, **__: Any) -> str:
        """Text of the ids, control tokens written out."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int | None] | None:
        """Ids of whole tokens; None for one that does not exist."""
        if isinstance(tokens, str):
            return self._tokenizer.token_to_id(tokens)
        return [self._tokenizer.token_to_id(token) for token in tokens]

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        """Ids with character offsets."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return {"input_ids": encoding.ids, "offset_mapping": encoding.offsets}

    def apply_chat_template(
        self, messages: Any, *, tools: Any = None, add_generation_prompt: bool = False, **kwargs: Any
    ) -> list[int]:
        """Ids of the messages by the folder's own Jinja template. Raises ConfigError when there is none, or it fails."""
        text = render_template(
            self.chat_template,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            **{**self._special_tokens(), **{k: v for k, v in kwargs.items() if k not in {"tokenize", "return_dict"}}},
        )
        return self.encode(text)

    def _special_tokens(self) -> dict[str, str]:
        named = {
            name: _text_of(self._config.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        }
        return {name: text for name, text in named.items() if text is not None}


def render_template(
    source: str, messages: Any, *, tools: Any = None, add_generation_prompt: bool = False, **kwargs: Any
) -> str:
    """Text of the messages by a Jinja chat template, in the sandbox that `transformers` renders it in.

    Raises:
        ConfigError: when the template is empty or refuses the messages.
    """
    if not source:
        raise ConfigError(
            f"the family `default` needs a chat template: {TEMPLATE_FILE} beside tokenizer.json, or `chat_template` in "
            f"{TOKENIZER_CONFIG}"
        )
    import jinja2
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        rendered, _ = render_jinja_template(
            [messages],
            tools=tools,
            chat_template=source,
            add_generation_prompt=add_generation_prompt,
            **kwargs,
        )
    except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
        raise ConfigError(f"the chat template refuses the messages: {type(error).__name__}: {error}") from error
    return rendered[0]


def open_renderer(family: str, settings: Mapping[str, Any], tokenizer: FamilyTokenizer) -> Renderer:
    """The package's renderer of a family.

    Raises:
        ConfigError: when the package is not installed, the family unknown, a setting not one of its own, or the tokenizer
            lacks a control token of the family.
    """
    configs = _package()
    try:
        config: Any = configs.config_from_name(family)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"harness.options.family is {family!r}: {error}") from error
    if config is None:
        raise ConfigError(
            "harness.options.family is 'auto'; name the family, a model's name does not prove its template"
        )
    from renderers import create_renderer  # pyright: ignore[reportMissingImports] - an extra

    try:
        return create_renderer(tokenizer, type(config)(**settings))
    except (ValueError, AssertionError, TypeError) as error:
        raise ConfigError(f"family {family} with {dict(settings)}: {error}") from error


@functools.cache
def _package() -> Any:
    try:
        from renderers import configs  # pyright: ignore[reportMissingImports] - an extra
    except ImportError as error:
        raise ConfigError(
            f"harness.kind `renderers` needs a package that is not installed ({error.name}); "
            "pip install 'headrace[renderers]'"
        ) from error
    return configs


def _text_of(token: Any) -> str | None:
    """A token of tokenizer_config.json, which is a text or an object with one."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
