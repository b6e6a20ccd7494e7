"""What stands behind a number that is announced as an answer and is no part of it.

"15 (3*5)" says 15; but "2 (3+4)" says 14.
"""

from __future__ import annotations

import re

_NUMBER = r"-?\d[\d.,/]*"
_TERM = r"[({]*-?\d[\d.,]*(?:[!%km)}]|\\%)*"
_CALCULATION = rf"{_TERM}(?:\s*(?:[-+*/^x\u00d7\u00b7\u00f7]|\\(?:times|cdot|div)(?![a-z]))\s*{_TERM})+"
_ANNOUNCED = (
    rf"(answer\s*(?:is|:)+\s*(?:[a-z][\w'()]{{0,19}}\s*=\s*)?)({_NUMBER})((?:\s?(?:\\?%|\^\\circ|[a-z](?![\w.])))?)"
)
"""An announcement, its number, and the number's unit."""
EXPLAINED = re.compile(
    rf"{_ANNOUNCED}(\s+[(\[](?:i\.e\.,?\s+)?(?:{_CALCULATION}|\d[\d.,]*[!km])\s*[)\]]"
    rf"|(?:\s?:|\s*[-=]>|\s*\u2192|\s+i\.e\.,?)\s+{_CALCULATION})",
    re.IGNORECASE,
)
"""An announced number, and the calculation that explains it."""
_MAY_HAVE_A_LARGER_TERM = re.compile(r"[-/.%\u00f7]|\\div|\d[km]")
"""A difference, a quotient, a decimal, a percentage, a unit, or `i.e.`."""


def without_explanation(found: re.Match[str]) -> str:
    """Give what `EXPLAINED` matches without the explanation, unless that is a factor.

    A sum, product or power of positive whole numbers that gives the number has no larger term than it.
    """
    announcement, number, unit, explanation = found.groups()
    is_of_whole_numbers = explanation.lstrip()[0] in "([" and not _MAY_HAVE_A_LARGER_TERM.search(explanation)
    if is_of_whole_numbers and _size(number) < max(map(_size, re.findall(r"\d[\d.,]*", explanation))):
        return found[0]
    return f"{announcement}{number}{unit} "


def _size(number: str) -> float:
    digits = re.match(r"\d+(?:\.\d+)?", number.lstrip("-").replace(",", ""))
    return float(digits[0]) if digits else 0.0
