r"""Rewrites what math-verify misreads into LaTeX that it reads, and says where it has left something out.

Each rule is for a notation that models or data sets use and of which math-verify reads a part without a word: of
`1\,000` zero, of `0.\overline{3}` zero, of `f'(0)` `f(0)`, of `\ge 5` five. Nothing here decides what is equal.
"""

from __future__ import annotations

import re
from typing import Any

from sympy import Symbol
from sympy.core.function import AppliedUndef

_SIGNS = str.maketrans(
    {
        "\u2212": "-",
        "\u00a0": " ",
        "\u2009": " ",
        "\u202f": " ",
        "∞": r"\infty ",
        "π": r"\pi ",
        "√": r"\sqrt ",
        "°": r"^\circ ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "…": r"\ldots ",
        "½": r"\frac{1}{2}",
        "⅓": r"\frac{1}{3}",
        "⅔": r"\frac{2}{3}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
    }
)
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?))")
"""Of all digits; behind `\\sqrt` math-verify takes one."""
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ"
_POWER = re.compile(f"[{_RAISED}]+")
_LOWER = str.maketrans(_RAISED, "0123456789-+n")

_THOUSANDS = re.compile(r"(?<![\d.,^_])[1-9]\d{0,2}(?:(?:\\[,;: ]|~| )\d{3})+(?!\d)")
_THOUSANDS_MARK = re.compile(r"\\[,;: ]|~| ")
_TIMES = re.compile(r"(?<=[\d)}])\s*·")
"""Behind a letter it may be that of a unit."""
_TIE = re.compile(r"(?<=[\d}])~(?=\\)")
"""Before a unit."""
_DEGREES = re.compile(r"(?<=\d)\s*(?:°|\^\s*(?:\{\s*\\circ\s*\}|\\circ))\s*[CF](?![A-Za-z])")
_AREA = re.compile(r"(?<=\d)\s(?:[cdkm]?m|ft|in)[²³]")
_DOTTED = re.compile(r"\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?")
_RECURRING = re.compile(r"(?<![\d.,])(\d{1,40})\.(\d{0,40})\\(?:overline|bar)\s*(?:\{(\d{1,40})\}|(\d))")
_PRIMES = re.compile(r"'{1,4}(?!')(\s*(?=[A-Za-z]))?")
_PRIMED = re.compile(r"(?:(?<![A-Za-z\\])(?<![^A-Za-z)\]}']')[A-Za-z]{1,3}|\\[A-Za-z]+|_\d|[)}\]])\Z")
"""Behind a letter or a bracket; behind a number they are feet or minutes, and what stands in quotes has none."""
_CONTRACTION = re.compile(r"'(?:s|re|ve|ll|d|m|(?<=n')t)\b")
"""As in "it's" and "don't"."""
_LONGEST_NAME = 12
"""Letters; what bears primes is as long at most."""
_T = r"(?:T|\\top(?![A-Za-z])|\\math(?:rm|sf)\s*\{\s*T\s*\})"
_TRANSPOSED = re.compile(rf"\^\s*(?:\{{\s*{_T}\s*\}}|{_T})")
_GOES_ON = re.compile(r"(,\s*)(?:\\(?:l|c)?dots(?![a-z])|\.\.\.)")
"""As a sequence does; math-verify would take its beginning for a set."""

_RELATION = r"(?:<(?![^<>]*>)|>|\\(?:[gl](?:t|eq?(?:slant)?)|neq?)(?![a-z]))"
"""No brackets, as in `<1, 2>`."""
_NO_LEFT_SIDE = re.compile(
    rf"(^\s*(?:\$\s*)?|\\boxed\s*\{{\s*|answer\s*(?:is|:)+\s*(?:(?:\$|\\\()\s*)?)(?={_RELATION})", re.IGNORECASE
)

_IS_TEXT = re.compile(
    r"\\(?:pmod|aleph)(?![a-z])|\\equiv.{0,200}\\b?mod(?![a-z])|,\s*\\cdots|^\s*[-+\d.]+\s*\([^(),]*,[^()]*\)\s*$"
)
"""A residue, of which math-verify reads the modulus, an infinite number, a sequence, or a multiple of a point."""
_VALUE_BEGINS = re.compile(r"=|\\(?:in|approx)(?![a-z])")
_VALUE_ENDS = re.compile(r"\\(?:text|q?quad|forall)(?![a-z])")
_LETTER = re.compile(r"(?<![A-Za-z\\])(?<!\\mathbb\{)[A-Za-z](?![A-Za-z])")
_CONSTANTS = frozenset("eid")
"""Letters that are no names: Euler's number, the imaginary unit, a differential."""
_SPACE = re.compile(r"\s+|\\[,;:! ]|\\q?quad(?![a-z])")
_ONE_IN_BRACES = re.compile(r"\{(\w)\}")
_MODULUS = re.compile(r"\\[bp]?mod\{?(\w+)\}?")
_RESIDUE = re.compile(r"\\equiv(.+?)\\pmod")


def readable(text: str) -> str:
    """Write as LaTeX that math-verify reads what it would misread, in prose or in a formula."""
    if "°" in text or r"\circ" in text:
        text = _DEGREES.sub(r"^\\circ ", text)
    if not text.isascii():
        text = _AREA.sub("", text)
        text = _POWER.sub(lambda raised: f"^{{{raised[0].translate(_LOWER)}}}", _ROOT.sub(r"\\sqrt{\1\2}", text))
        text = _TIMES.sub(r"\\cdot ", text).translate(_SIGNS)
    text = _THOUSANDS.sub(lambda number: _THOUSANDS_MARK.sub("", number[0]), text)
    if "~" in text:
        text = _TIE.sub(" ", text)
    text = _DOTTED.sub(r"\\overline{\1\2\3}", text)
    if r"\overline" in text or r"\bar" in text:
        text = _RECURRING.sub(_fraction, text)
    text = _PRIMES.sub(_primed, text)
    text = _TRANSPOSED.sub("^{t}", text)
    return _NO_LEFT_SIDE.sub(r"\1x ", _GOES_ON.sub(r"\1\\cdots", text))


def without_misreading(parsed: list[Any]) -> list[Any]:
    """Keep the text alone where it is no value for math-verify, or where the value has lost a letter of it.

    Spaces mean nothing in LaTeX, also where math-verify has found no value itself.
    """
    text = parsed[-1] if parsed else None
    if not isinstance(text, str):
        return parsed
    is_formula_alone = len(parsed) == 1 and "\\" in text
    if not (is_formula_alone or _IS_TEXT.search(text) or _has_lost_letter(parsed[0], text)):
        return parsed
    bare = _ONE_IN_BRACES.sub(r"\1", _SPACE.sub("", text))
    return [_MODULUS.sub(r"\\pmod\1", bare)]


def without_modulus_of_one(truth: list[Any], answer: list[Any]) -> tuple[list[Any], list[Any]]:
    """Where one side alone names a modulus, take the residue in front of it."""
    residues = [_RESIDUE.search(each[0]) if each and isinstance(each[0], str) else None for each in (truth, answer)]
    match residues:
        case [re.Match() as residue, None]:
            return [residue[1]], answer
        case [None, re.Match() as residue]:
            return truth, [residue[1]]
    return truth, answer


def _primed(primes: re.Match[str]) -> str:
    """Write primes as a power; a letter right behind it would be taken for a unit."""
    bearer = primes.string[max(primes.start() - _LONGEST_NAME, 0) : primes.start()]
    if not _PRIMED.search(bearer) or _CONTRACTION.match(primes.string, primes.start()):
        return primes[0]
    power = r"\prime" * primes[0].count("'")
    return f"^{{{power}}}" + ("*" if primes[1] is not None else "")


def _fraction(number: re.Match[str]) -> str:
    """Give a recurring decimal as what it is a fraction of."""
    whole, once, recurring = number[1], number[2], number[3] or number[4]
    difference = int(whole + once + recurring) - int(whole + once)
    return rf"\frac{{{difference}}}{{{'9' * len(recurring)}{'0' * len(once)}}}"


def _has_lost_letter(value: Any, text: str) -> bool:
    if isinstance(value, str):
        return False
    letters = {letter.casefold() for letter in _LETTER.findall(_value_part(text))} - _CONSTANTS
    if not letters:
        return False
    names = {symbol.name for symbol in value.atoms(Symbol)} | {str(each.func) for each in value.atoms(AppliedUndef)}
    return not letters <= set("".join(names).casefold())


def _value_part(text: str) -> str:
    """What stands behind the last sign of equality and before words about it."""
    return _VALUE_ENDS.split(_VALUE_BEGINS.split(text)[-1])[0]
