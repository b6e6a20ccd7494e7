r"""Rewrites what math-verify misreads into LaTeX that it reads, and says where it has left something out.

Each rule is for a notation that models or data sets use and of which math-verify reads a part without a word: of
`1\,000` zero, of `0.\overline{3}` zero, of `f'(0)` `f(0)`, of `\ge 5` and `2+3t` five. Nothing here decides
what is equal.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from sympy import Expr, Symbol
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

_SIGNS = str.maketrans(
    {
        "\u2010": "-",
        "\u2011": "-",
        "\u2013": "-",
        "\u2212": "-",
        "\u2032": "'",
        "\u2033": "''",
        "\u00a0": " ",
        "\u2009": " ",
        "\u202f": " ",
        "∞": r"\infty ",
        "π": r"\pi ",
        "√": r"\sqrt ",
        "∛": r"\sqrt[3]",
        "°": r"^\circ ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "≈": r"\approx ",
        "±": r"\pm ",
        "…": r"\ldots ",
        **dict.fromkeys("€£¥₹", ""),
    }
)
_ROOT = re.compile(r"([√∛])\s*(?:\(((?:[^()]|\([^()]*\))*)\)|(\d+(?:\.\d+)?|[a-z]))")
"""Of all digits; behind `\\sqrt` math-verify takes one."""
_SMALL = re.compile("([⁰¹²³⁴-⁹⁻⁺ⁿ]+)|([₀-₉]+)|[¼-¾⅐-⅞]")

_THOUSANDS = re.compile(r"(?:(?<![\d.,^_])[1-9]\d{0,2}(?:(?:\\[,;: ]|~| )\d{3})+|(?<=\d\.)(?:\d{3}\\,)+\d{1,3})(?!\d)")
_THOUSANDS_MARK = re.compile(r"\\[,;: ]|~| ")
_MIXED = re.compile(r"(?<![\w.,/^])(\d{1,40})(?: |~|\\[ ,;:])(\d{1,40})/(\d{1,40})(?![\w/]|\.\d)")
"""A whole number and a fraction, `2 1/2`, which math-verify would multiply or run together."""
_TIMES = re.compile(r"(?:(?<=[\d)}])|(?<=[^A-Za-z\s][a-z]))\s*·")
"""Behind a letter that stands alone it may be that of a unit."""
_EMPTY_SET = re.compile(r"\\varnothing(?![A-Za-z])|(?<!\w)Ø(?!\w)")
_INDEXED_E = re.compile(r"(?<![A-Za-z\\])[Ee](?=\s?_)")
"""Which math-verify takes for the E of `1E5`, or for Euler's number."""
_BRACKETS_OF_A_BASE = re.compile(r"\((\d+)\)(?=_\{?\d)")
_PRODUCT = re.compile(r"(?<![\w^.])(\d+)\((?=\d+\))")
"""Of two numbers, which math-verify would add as those of a mixed number."""
_TIE = re.compile(r"(?<=[\d}])~(?=\\)")
"""Before a unit."""
_DEGREE = re.compile(r"\^\s*\{\s*\\degrees?\s*\}|(?:\^\s*)?\\degrees?(?![A-Za-z])")
_DEGREES = re.compile(r"(?<=\d)\s*(?:°|\^\s*(?:\{\s*\\circ\s*\}|\\circ))\s*[CF](?![A-Za-z])")
_AREA = re.compile(r"(?<=\d)\s(?:[cdkm]?m|ft|in)[²³]")
_SPEED = re.compile(r"(?<=\d)\s(?:[ckm]?m|mi|ft)/(?:s|min|h|hr)(?:\^(?:2|\{2\}))?(?![A-Za-z^{])")
"""Its unit; math-verify would divide by the letters."""
_UPRIGHT = re.compile(
    r"\\(?:math|text)(?:rm|normal)?\s*\{[\s~]*([ei])\s*\}|\\mathbf\s*\{\s*([A-Za-z])\s*\}|(?<=\d)(i)(?![A-Za-z])"
)
"""Euler's number, the imaginary unit and vectors, which math-verify would drop as units at the end. Behind a digit it
takes the imaginary unit for a real number."""
_NUMBER_AS_TEXT = re.compile(r"(?<![_^\w])\\text\s*\{\s*(\d[\d.,]*)((?:\s+[A-Za-z]+)*)\s*\}")
_COUNTED = re.compile(
    r"(?<![\w^_.,}])(\d[\d.,]*)((?:\s|\\ )+\(?"
    r"(?!hundred|thousand|\w+illion|dozen|third|hal[fv]|quarter|(?:four|fif|six|seven|eigh|nin|ten|\w*teen|\w*ie)ths?\b)"
    r"(?!squared|cubed|factorial|root|choose|plus|minus|times|over|less|more|pairs?\b)"
    r"(?!ab|(?:sin|cos|tan|log|exp)\w\b)(?=[a-z]*[aeiou])[a-z]{4,}"
    r"(?:\s+(?!or\b|and\b|to\b)[a-z]{2,})*\)?)(?=\s*[}$])"
)
"""A number and what it counts; shorter words are factors, as are those without a vowel."""
_LABEL = re.compile(
    r"((?:\\boxed\s*\{|\$|\\[(\[]|,)(?:\s|\\[,;:! ]|\\q?quad)*)\\text(?:bf|it|rm)?\s*"
    r"\{(?![^{}]*\b(?:not|wrong|incorrect)\b)[^{}:]{0,60}[A-Za-z]\s*:\s*\}(?=\s*[^\s}$])",
    re.IGNORECASE,
)
"""In front of a formula or behind its commas, `\\text{Area: }`; math-verify would take it for the value."""
_ALL_AS_TEXT = re.compile(r"(\\boxed\s*\{|\$)\s*\\text(?:bf|it|rm)?\s*\{(?=[^{}$\d=,]*[\d=,])([^{}$]*)\}\s*(?=[}$])")
"""With more than words in it, of which math-verify reads nothing."""
_FULL_HOUR = re.compile(r"(?<=\d):00(?![\d:])")
"""Of a time, which math-verify would divide by zero."""
_HALF_OF_THE_DAY = re.compile(
    r"(?<=\d)(?:\s|~|\\[ ,;:])*(?:\\(?:text|mathrm)\s*\{[\s~]*([ap])\.?m\.?\s*\}|([ap])\.\s?m(?![A-Za-z])\.?)"
    r"|(?:(?<=:\d\d)|(?<=\d)\s)\s*([ap])m(?=\s*(?:[}$.,;!?]|\Z))",
    re.IGNORECASE,
)
"""Behind a time; within a formula, `2am` is a product. math-verify would drop it as a unit."""
_RELATION = r"(?:<(?![^<>]*>)|>|\\(?:[gl][gt]|ll|neq?|n?(?:[gl]e|less|gtr)(?:q{0,2}|slant|qslant|sim))(?![a-z]))"
"""No brackets, as in `<1, 2>`."""
_SUCH_THAT = re.compile(
    r"(\\\{\s*[a-z]\s*(?:\\in\s*\\mathbb\s*\{?[A-Z]\}?\s*)?)(?::|\\mid(?:dle\s*\|)?(?![a-z])|\\left\s*\|)"
)
"""A set given by a condition, and the sign in front of that."""
_SET_OF_BOUNDS = re.compile(
    r"(\$|\\boxed\s*\{|\\[(\[])(?:[^${}=]{0,60}=)?\s*"
    r"(?:\\left\s*)?\\\{\s*[a-z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?\|"
    rf"(?=[^$]{{0,200}}{_RELATION})"
    r"((?:[^{}$|,;:=\\]|\\(?!in\b|text|q?quad|[}|;,:])|(?<!\\)\{[^{}]*\}){1,200}?)"
    r"(?:\\right\s*\.\s*)?(?:\\right\s*)?\\\}(?=\s*(?:\$|\\[)\]]|\}\s*\Z))"
)
"""Such a set whose condition is one relation or a chain, which says as much alone."""
_DOTTED = re.compile(r"\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?")
_RECURRING = re.compile(
    r"(?<![\d.,])(\d{1,40})\.(\d{0,40})(?:\\(?:overline|bar)\s*(?:\{(\d{1,40})\}|(\d))|(?<=\.)\((\d{1,40})\))"
)
_PRIMES = re.compile(r"'{1,4}(?!')(\s*(?=[A-Za-z]))?")
_PRIMED = re.compile(r"(?:(?<![A-Za-z\\])(?<![^A-Za-z)\]}']')[A-Za-z]{1,3}|\\[A-Za-z]+|_\d|[)}\]])\Z")
"""Behind a letter or a bracket; behind a number they are feet or minutes, and what stands in quotes has none."""
_CONTRACTION = re.compile(r"'(?:s|re|ve|ll|d|m|(?<=n')t)\b")
"""As in "it's" and "don't"."""
_LONGEST_NAME = 12
"""Letters; what bears primes is as long at most."""
_T = r"(?:T|\\top(?![A-Za-z])|\\math(?:rm|sf)\s*\{\s*T\s*\})"
_TRANSPOSED = re.compile(rf"\^\s*(?:\{{\s*{_T}\s*\}}|{_T})")
_OF_A_SET = re.compile(r"(\\(?:max|min|gcd)\s*)\\(?:left\s*\\)?\{([^{}]*?)\\(?:right\s*\\)?\}")
_GOES_ON = re.compile(r"(,\s*)(?:\\(?:l|c)?dots(?![a-z])|\.\.\.)")
"""As a sequence does; math-verify would take its beginning for a set."""

_NO_LEFT_SIDE = re.compile(
    rf"(^\s*(?:\$\s*)?|\\boxed\s*\{{\s*|answer\s*(?:is|:)+\s*(?:(?:\$|\\\()\s*)?)(?={_RELATION})", re.IGNORECASE
)

_COMPUTED = re.compile(
    r"(\\boxed\s*\{|\$|\\[(\[])(?:\s*[a-z]\s*=)?[\d\s^!+*(){}-]{1,80}\\[bp]?mod\s*(?:\d+|\{\d+\})\s*=(?!=)"
)
"""A remainder whose value stands behind it."""

_LAST_LETTER = re.compile(r"(?<=[\d}\s])(?:[cdghlmost]|ab|bc|[ap]m)(?=\s*(?:\$|\\[)\]]|\}\s*\Z))")
"""Of a formula; math-verify would drop it as a unit."""
_UNIT_WITHIN = re.compile(
    r"(\\(?:text\w*|math(?:rm|it|bf)|mbox))"
    r"(?=\{(?!\s*(?:and|or|percent(?:age)?|pct)\s*\})(?![^{}]{0,80}\([^{})]{0,80}\})[^{}]{0,160}\}"
    r"(?:(?!\\[)\]])[^$]){0,300}?(?:(?<!\^)(?<!\^\{)(?<!\^\{-)\d|\\end\{))"
)
"""Words with a number behind them; with them math-verify would drop all that stands there, but not behind a blank."""
_FORMULA_BEGINS = re.compile(r"\\boxed\s*\{|\$|\\[(\[]|=")
_LONGEST_FORMULA = 300
"""Characters that are read of a formula in front of its last letter."""
_HAS_OTHERS = re.compile(
    r"(?<!\^)(?<!\^\{)[-+]|(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])"
    r"|\\(?:(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|ln|exp|alpha|beta|gamma|lambda|omega|rho|theta)(?![a-z])"
)
"""A sign, a letter or a function, beside which a letter is a factor; behind a number alone it may be a unit."""

_IS_TEXT = re.compile(
    r"\\(?:[bp]?mod|aleph|not|l?neg)(?![a-z])|\\text\s*\{\s*mod\s*\}|,\s*\\cdots"
    r"|^\s*[-+\d.]+\s*\([^(),]*,[^()]*\)\s*$"
    r"|\\\{\s*[a-z]\s*(?:\\in[^|{}]*\{?[A-Z]\}?\s*)?\|"
)
"""A residue, of which math-verify reads the modulus or computes the remainder, which is left to the response; an
infinite number, a denial, a sequence, a multiple of a point, or a set given by a condition."""
_LINES = re.compile(r"\A(?![\s\S]*\\begin)[\s\S]*?\\\\(?=[\s\\\[])(?!\s*(?:[=&]|\Z))")
"""Several, neither those of a matrix nor of a calculation, of which math-verify reads one."""
_VALUE_BEGINS = re.compile(r"=|\\(?:in|approx|sim)(?![a-z])|^\s*[A-J][).]")
_VALUE_ENDS = re.compile(
    r"\\(?:text|forall)(?![a-z])"
    rf"|(?<=[\w}})\]])(?:\s|\\[ ,;:])*(?:\\q?quad(?![a-z])|(?<=[ ,;:])\((?=[^()]*(?:{_RELATION}|\\in(?![a-z]))))"
)
"""Words about it, or a condition in brackets."""
_LOST_RELATION = re.compile(_RELATION)
_LETTER = re.compile(r"(?<![A-Za-z\\])(?<!\\mathbb\{)[A-Za-z](?![A-Za-z])")
_CONSTANTS = frozenset("eid")
"""Letters that are no names: Euler's number, the imaginary unit, a differential."""
_SPACE = re.compile(r"\s+|\\[,;:! ]|\\q?quad(?![a-z])")
_ONE_IN_BRACES = re.compile(r"\{(\w)\}")
_MODULUS = re.compile(r"\(?\\(?:[bp]?mod|text\{mod\})\{?([^(){}=,\\]+)[)}]{0,2}")
_NAME = re.compile(r"^[A-Za-z](?:_\w+|\(\w\))?(?:=|\\equiv)(?!=)")
_GCD = re.compile(r"\\gcd\(([^()]*)\)")
_RESIDUE = re.compile(r"(?:.*(?<!\\not)\\equiv)?(.+)\\pmod[^\\,=]+$")
_NUMBERS = re.compile(r"(?:^|(?<=\\equiv))(-?\d{1,40}(?:,-?\d{1,40})*)\\pmod([1-9]\d{0,39})$")
"""As residues; the name in front of them is gone."""


def readable(text: str) -> str:
    """Write as LaTeX that math-verify reads what it would misread, in prose or in a formula."""
    if "°" in text or r"\circ" in text:
        text = _DEGREES.sub(r"^\\circ ", text)
    if not text.isascii():
        text = _AREA.sub("", text)
        text = _SMALL.sub(_in_full_size, _ROOT.sub(r"\1{\2\3}", text))
        text = _TIMES.sub(r"\\cdot ", text).translate(_SIGNS)
    text = _BRACKETS_OF_A_BASE.sub(r"\1", _DEGREE.sub(r"^\\circ ", text))
    text = _INDEXED_E.sub(r"\\mathsf{E}", text)
    text = _EMPTY_SET.sub(r"\\emptyset ", text)
    text = _PRODUCT.sub(r"\1\\cdot (", text)
    text = text.replace("<=", r"\le ").replace(">=", r"\ge ")
    text = _THOUSANDS.sub(lambda number: _THOUSANDS_MARK.sub("", number[0]), text)
    text = _MIXED.sub(_improper, text)
    if "~" in text:
        text = _TIE.sub(" ", text)
    text = _UPRIGHT.sub(r" \1\2\3", text)
    text = _NUMBER_AS_TEXT.sub(r"\1\\text{\2}", _SPEED.sub("", text))
    text = _COUNTED.sub(r"\1\\text{\2}", text)
    text = _ALL_AS_TEXT.sub(r"\1\2", _LABEL.sub(r"\1", text))
    text = _HALF_OF_THE_DAY.sub(_as_subscript, _FULL_HOUR.sub("", text.replace("{:}", ":")))
    text = _SET_OF_BOUNDS.sub(r"\1\2", _SUCH_THAT.sub(r"\1|", text))
    text = _DOTTED.sub(r"\\overline{\1\2\3}", text)
    text = _RECURRING.sub(_fraction, text)
    text = _PRIMES.sub(_primed, text)
    text = _COMPUTED.sub(r"\1", _OF_A_SET.sub(r"\1(\2)", _TRANSPOSED.sub("^{t}", text)))
    return _NO_LEFT_SIDE.sub(r"\1x ", _GOES_ON.sub(r"\1\\cdots", text))


def with_units_alone_at_the_end(text: str) -> str:
    """Keep what math-verify would drop as a unit at the end of a formula and is none, or has a number behind it."""
    return _LAST_LETTER.sub(_in_brackets, _UNIT_WITHIN.sub(r"\1 ", text))


def without_misreading(parsed: list[Any]) -> list[Any]:
    """Keep the text alone where it is no value for math-verify, or where the value has lost a part of it.

    Such a text is bare of spaces, of the name that it is the value of, and of the order of a divisor's numbers.
    """
    text = parsed[-1] if parsed else None
    if not isinstance(text, str):
        return parsed
    is_formula_alone = len(parsed) == 1 and "\\" in text
    if not (is_formula_alone or _IS_TEXT.search(text) or _LINES.match(text) or _has_lost_part(parsed[0], text)):
        return parsed
    bare = _ONE_IN_BRACES.sub(r"\1", _SPACE.sub("", text))
    return [_GCD.sub(_in_order, _NAME.sub("", _MODULUS.sub(r"\\pmod\1", bare)))]


def comparable_residues(truth: list[Any], answer: list[Any]) -> tuple[list[Any], list[Any]]:
    """Give the least residues where both sides name a modulus; where one alone does, the residue in front of it."""
    residues = [_RESIDUE.match(each[0]) if each and isinstance(each[0], str) else None for each in (truth, answer)]
    match residues:
        case [re.Match(), re.Match()]:
            return [_NUMBERS.sub(_least, truth[0])], [_NUMBERS.sub(_least, answer[0])]
        case [re.Match() as residue, None]:
            return [residue[1]], answer
        case [None, re.Match() as residue]:
            return truth, [residue[1]]
    return truth, answer


def _as_subscript(half: re.Match[str]) -> str:
    letter = half[1] or half[2] or half[3]
    return f"_{{{letter.lower()}m}}"


def _in_brackets(letter: re.Match[str]) -> str:
    before = letter.string[max(letter.start() - _LONGEST_FORMULA, 0) : letter.start()]
    factors = _FORMULA_BEGINS.split(before)[-1]
    if not factors.strip():
        return f"({letter[0]})"
    is_factor = letter[0] in {"ab", "bc"} or _HAS_OTHERS.search(factors.strip().removeprefix("-"))
    return f"{{{letter[0]}}}" if is_factor else letter[0]


def _in_order(gcd: re.Match[str]) -> str:
    return rf"\gcd({','.join(sorted(gcd[1].split(',')))})"


def _least(residues: re.Match[str]) -> str:
    modulus = int(residues[2])
    return f"{sorted(int(each) % modulus for each in residues[1].split(','))}\\pmod{modulus}"


def _in_full_size(small: re.Match[str]) -> str:
    """Write raised or lowered digits as a power or an index, and a fraction as LaTeX."""
    text = unicodedata.normalize("NFKC", small[0])
    if small[1] or small[2]:
        return f"{'^' if small[1] else '_'}{{{text}}}"
    above, below = text.split("\u2044")
    return rf"\frac{{{above}}}{{{below}}}"


def _primed(primes: re.Match[str]) -> str:
    """Write primes as a power; a letter right behind it would be taken for a unit."""
    bearer = primes.string[max(primes.start() - _LONGEST_NAME, 0) : primes.start()]
    if not _PRIMED.search(bearer) or _CONTRACTION.match(primes.string, primes.start()):
        return primes[0]
    power = r"\prime" * primes[0].count("'")
    return f"^{{{power}}}" + ("*" if primes[1] is not None else "")


def _improper(number: re.Match[str]) -> str:
    """Write a mixed number, whose fraction is less than one, as a fraction, which is also read in prose."""
    whole, above, below = map(int, number.groups())
    return f"{whole * below + above}/{below}" if above < below else number[0]


def _fraction(number: re.Match[str]) -> str:
    """Give a recurring decimal as what it is a fraction of."""
    whole, once, recurring = number[1], number[2], number[3] or number[4] or number[5]
    difference = int(whole + once + recurring) - int(whole + once)
    return rf"\frac{{{difference}}}{{{'9' * len(recurring)}{'0' * len(once)}}}"


def _has_lost_part(value: Any, text: str) -> bool:
    """Whether a letter or a relation of the text is missing in the value."""
    if isinstance(value, str):
        return False
    part = _value_part(text)
    if _LOST_RELATION.search(part) and isinstance(value, Expr) and not value.has(Relational):
        return True
    letters = {letter.casefold() for letter in _LETTER.findall(part)} - _CONSTANTS
    if not letters:
        return False
    names = {symbol.name for symbol in value.atoms(Symbol)} | {str(each.func) for each in value.atoms(AppliedUndef)}
    return not letters <= set("".join(names).casefold())


def _value_part(text: str) -> str:
    """What stands behind the last sign of equality and before words or a condition."""
    return _VALUE_ENDS.split(_VALUE_BEGINS.split(text)[-1])[0]
