"""Finds the chat template of a run: a file of the user's, else the one in the model directory.

It looks without loading a tokenizer, so that `rollpacker check` can say in a moment what tokenizing would stumble over.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rollpacker.core.errors import ConfigError, ModelError, UserError
from rollpacker.data.json_files import read_object
from rollpacker.paths import read_text, reason_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from rollpacker.config.sections.data import DataSection
    from rollpacker.protocols.rollout import Prompt

_GENERATION_TAG = re.compile(r"{%-?\s*(end)?generation\s*-?%}")
"""A tag of transformers' own, around what an assistant has written."""

JOINING_TEMPLATE = r"{% for m in messages %}{{ m.content + '\n' }}{% endfor %}"
"""What a message suggests to people whose model has none: the contents, one per line."""


def read_chat_template(path: Path) -> str:
    """Read the file that `data.chat_template` names.

    Raises:
        ConfigError: It cannot be read, is blank, or is no Jinja.
    """
    try:
        template = read_text(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"data.chat_template={path} cannot be read: {reason_of(error)}.",
            "It names a text file in UTF-8 that holds a Jinja template.",
            "Correct the path, or leave it out for the tokenizer's own template.",
        ) from error
    if not template.strip():
        raise ConfigError(
            f"data.chat_template={path} is empty.",
            "It holds a Jinja template over `messages` and `add_generation_prompt`.",
            "Write one, or leave it out for the tokenizer's own template.",
        )
    check_template(f"data.chat_template={path}", template, ConfigError)
    return template


def has_chat_template(model_path: Path) -> bool:
    """Return whether a model directory has a template."""
    return any(True for _ in model_templates(model_path))


def model_templates(model_path: Path) -> Iterator[tuple[Path, str]]:
    """Yield each template of a model directory, and the file that has it.

    Raises:
        ModelError: Such a file cannot be read, or gives something else.
    """
    if (file := model_path / "chat_template.jinja").is_file():
        try:
            yield file, read_text(file)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{file} cannot be read: {reason_of(error)}",
                "It holds a Jinja template in UTF-8",
                "Download the file again",
            ) from error
    for name in ("chat_template.json", "tokenizer_config.json"):
        own = read_object(file).get("chat_template") if (file := model_path / name).is_file() else None
        # Older models with several templates have a list of them, each with its name.
        for template in own if isinstance(own, list) else [] if own is None else [{"template": own}]:
            text = template.get("template") if isinstance(template, dict) else None
            if not isinstance(text, str):
                raise ModelError(
                    f"{file} gives {str(template)[:50]} as a chat_template",
                    "Allowed: a Jinja template, or a list of objects with `name` and `template`",
                    "Correct the file",
                )
            yield file, text


def check_template(source: object, template: str, mistake: type[UserError] = ModelError) -> None:
    """Refuse a template that is no Jinja as transformers reads it, with an error of the given class."""
    from jinja2 import TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    try:
        environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
        environment.parse(_GENERATION_TAG.sub("", template))
    except TemplateSyntaxError as error:
        raise mistake(
            f"{source} holds a chat template that is no Jinja: line {error.lineno}: {error.message}.",
            "It is a template that transformers can apply.",
            "Correct it, or name another one by data.chat_template.",
        ) from error


def is_chat(prompt: Prompt, section: DataSection) -> bool:
    """True when a prompt goes through the chat template."""
    return prompt.text is None or section.plain_as_chat


def no_template(model_path: Path, prompt: Prompt) -> ModelError:
    """Make the error of a prompt that needs a template, with a model that has none."""
    return ModelError(
        f"The tokenizer in {model_path} has no chat template, which the messages of prompt {prompt.key!r} need.",
        "Chat models have one; most base models do not.",
        "Take the chat version of the model; or write plain text in the field `prompt`; or name a Jinja file by "
        f"data.chat_template (to join the contents, it holds `{JOINING_TEMPLATE}`).",
    )


def check_chat(section: DataSection, model_path: Path, prompts: Iterable[Prompt]) -> None:
    """Check how prompts become text, as far as is possible without a tokenizer.

    Raises:
        ConfigError: The template's file is wrong, or what is given for templates would not reach some prompts.
        ModelError: Messages need a template, and there is none.
    """
    is_model = (model_path / "config.json").is_file()  # the check of the model's files reports what is none
    can_chat = section.chat_template is not None or not is_model or has_chat_template(model_path)
    if section.chat_template is not None:
        read_chat_template(section.chat_template)
    is_used = False
    for prompt in prompts:
        if is_chat(prompt, section):
            is_used = True
            if not can_chat:
                raise no_template(model_path, prompt)
        elif section.system_prompt is not None:
            raise ConfigError(
                f"data.system_prompt is set, and the prompt {prompt.key!r} is plain text, which has no system message.",
                "Only messages go through the chat template.",
                "Set data.plain_as_chat=true, or write `messages`, or leave out data.system_prompt.",
            )
    if not is_used and (section.chat_template or section.template_arguments):
        key = "chat_template" if section.chat_template else "template_arguments"
        raise ConfigError(
            f"data.{key} is set, and every prompt is plain text.",
            "Only messages go through the chat template.",
            f"Set data.plain_as_chat=true, or write `messages`, or leave out data.{key}.",
        )
