"""What others have written is shown, and neither obeyed nor taken for markup."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from rollpacker.terminal import Terminal, printable

DIRECTIONS = {"RLE", "LRE", "PDF", "RLO", "LRO", "RLI", "LRI", "FSI", "PDI"}

markup = st.sampled_from(["[red]", "[/red]", "[/]", "[bold", "[link=x]", ":smile:", "[@click=f]", "\\[", "a", " "])
any_text = st.text() | st.lists(markup).map("".join)


def acts(character: str) -> bool:
    """Whether a terminal or a page would do something at it, beside showing it."""
    if character in "\n\t":
        return False
    is_control = unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}
    return is_control or unicodedata.bidirectional(character) in DIRECTIONS or "\U000e0000" <= character <= "\U000e007f"


def shown(renderable: object, *, width: int = 10_000, **options: object) -> str:
    file = io.StringIO()
    Terminal(file=file, width=width, force_terminal=True, color_system=None, **options).print(renderable)
    return file.getvalue()


@given(st.text(st.characters(exclude_categories=[])))
@example("\x1b[31m\x00\x9b2J\u202e\ud800\u2028\U000e0041")
def test_nothing_acts_in_what_is_printable_and_all_else_is_as_it_was(text):
    seen = printable(text)
    assert not any(map(acts, seen))
    changed = {old for new, old in zip(seen, text, strict=True) if new != old}
    assert all(acts(old) or old in "\u061c\u200e\u200f\ufff9\ufffa\ufffb" for old in changed)
    assert printable(seen) == seen
    seen.encode()


@given(any_text)
@example("a[/red]b")
@example("exp[rank0]")
@example(":smile:")
@example("\x1b]8;;http://x\x07y")
def test_a_terminal_shows_text_as_it_is(text):
    [line] = [printable(text).replace("\n", " ").replace("\t", " ")]
    text = text.replace("\n", " ").replace("\t", " ")
    table = Table(box=None, title=text)
    table.add_row(text)
    for renderable in (text, Text(text), table):
        seen = shown(renderable)
        assert not any(map(acts, seen))
        for character in set(line) - set(map(chr, range(0x2400, 0x2420))) - {"\ufffd"}:
            assert character.isspace() or seen.count(character) >= line.count(character)


@pytest.mark.parametrize("name", ["[red]h", "a[/red]b", "exp[rank0]", ":smile:", "[bold]x[/bold]", "[/]"])
def test_words_that_look_like_markup_are_names(name):
    assert shown(name) == f"{name}\n"
    assert shown(Text(name, "red")) == f"{name}\n"


def test_styles_and_pictures_of_our_own_still_act():
    file = io.StringIO()
    Terminal(file=file, force_terminal=True, color_system="standard").print(Text("x\x1b[2Jy", "red"))
    assert file.getvalue() == "\x1b[31mx\u241b[2Jy\x1b[0m\n"
