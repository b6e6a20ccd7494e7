r"""Scores math answers with math-verify: LaTeX, numbers, sets, intervals, and words such as `Yes`.

The answer is what the last `\boxed{}` (or several, joined by commas or `and`) or `<answer></answer>` holds, else an
announced one ("the answer is 3"), else the last formula or number of the text; of a truncated response the latter does
not count. The ground truth may come bare, in `$...$` or in `\boxed{}`. A sign of per cent at its end, or at that of an
answer, may be left out.

* `correct`, `wrong_answer`;
* `no_answer`: nothing in the response can be read as one; `truncated` when it also ended at the length limit;
* `unparsable_ground_truth`: the prompt file's answer cannot be read (`math_truths`), and the response is not the same.

What math-verify misreads is rewritten first, or compared as text (`math_notation`).

An answer must claim one thing: of `5=6=7`, `8 \to 7`, "7 or 8" and "not 7" math-verify alone would accept a part. It
takes numbers for equal that agree to six decimals; small ones must agree to one part in a thousand, too. It takes a set
for a point; here `\{1, 2\}` is not `(1, 2)`, and `1, 2` may be either.

What is nested more than ten deep is not read, for which math-verify would take seconds to minutes.

Invariant: no time limit in here. math-verify's own uses SIGALRM, which needs the main thread and cannot stop a long
multiplication in C; comparing with `9^{9^{9^9}}` never ends, so this module runs in a process that can be killed.
"""

from __future__ import annotations

import functools
import logging
import re
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, StringExtractionConfig, parse, verify
from sympy import And, Eq, Expr, FiniteSet, Interval, Number, Tuple, expand, preorder_traversal
from sympy.core.function import AppliedUndef

from rollpacker.rewards import math_notation, math_truths
from rollpacker.rewards.math_explanations import EXPLAINED, HALF_OF_THE_DAY, without_explanation
from rollpacker.rewards.scores import CORRECT, TRUNCATED, UNPARSABLE_GROUND_TRUTH, Score

_WRONG_ANSWER = Score(0.0, "wrong_answer")
_NO_ANSWER = Score(0.0, "no_answer")

_ANYWHERE = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
_ANNOUNCED = (
    LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False),
    ExprExtractionConfig(try_extract_without_anchor=False),
)

_VERDICTS = ("yes", "no", "true", "false")
"""As formulas these are products of letters, so that `no` would equal `on`: they are compared as words only."""
_CHOICES = tuple("ABCDEFGHIJ")
"""As many as MMLU-Pro has."""
_SPELLINGS = (*_CHOICES, *(spelling for word in _VERDICTS for spelling in (word, word.capitalize(), word.upper())))
_ANNOUNCED_WORDS = StringExtractionConfig(strings=_SPELLINGS, try_extract_without_anchor=False, lowercase=False)

_DELIMITERS = ("$", "\\boxed", "\\(", "\\[")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|operatorname)\s*\{([^{}]*)\}")
_WORD = re.compile(r"[^\W\d_]+(?:[ -][^\W\d_]+)*")

_BLANKS = re.compile(r"(?:\s|~|(?<!\\)\\ ){3,}")
"""Of a long run, patterns here and in math-verify would take a time that grows with its square or cube."""
_BOX_BEGINS = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX_ENDS = re.compile(r"(?<![\\.,;])[.,;]\s*\}$")
"""With the end of the sentence in it, of which math-verify reads nothing."""
_PERCENT = re.compile(r"\s*(?:\\?%|percent)(?=\s*[}$]*\s*$)")
_SCIENTIFIC = re.compile(r"(?<![\w.])(-?\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})(?![\w.])")
"""As programs write numbers; math-verify would read Euler's number."""
_ANSWER_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_LAST_LINE = re.compile(r"^####(?!#)(?![^\n]*answer)\s*(?=[^\n]+\s*\Z)", re.MULTILINE | re.IGNORECASE)
"""Of which GSM8K's solutions have their answer."""
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_NUMBER = r"-?\d[\d.,/]*"
_COORDINATE = r"-?\d[\d./]*"
_POINT = rf"(?!\(\d{{1,3}}(?:,\d{{3}})+\))[(\[]\s*{_COORDINATE}(?:\s*,\s*{_COORDINATE})+\s*[)\]]"
"""Or an interval, but no `(1,234)`."""
_BARE_FORMULA = (
    r"(?!\s|\\[(\[])"
    r"(?=[^\n$]{0,300}?(?:\\[a-z]|[\w)}]\s?[-+^:*]\s?[\w({]|\d[a-z]|[a-z]\(|\d,\s+-?\d)|[a-z]?\s{0,3}[<>/])"
    r"((?:\\[a-z]+|(?<![a-z])[a-z](?![a-z])|\\[,;:! {}]|[^a-z$=\n\\]){1,300}?)"
)
"""With a command, an operation, a relation or several numbers, and without words or an equation."""
_SENTENCE_ENDS = r"\s*(?:[.!]\s|[.!]?\Z|\n|,\s+(?!and\b|or\b)[a-z]{2})"
"""Or goes on in words."""
_MARKS = (
    (re.compile(r"</?[A-Za-z][\w-]*>|`+"), r" "),
    (re.compile(r"(?<![\w*)}])\*\*(?=\S)([^*\n]+)(?<=\S)\*\*(?![\w*(])"), r" \1 "),
    (re.compile(rf"(?<![\w*_])[*_]({_NUMBER})[*_](?![\w*_])"), r" \1 "),
    (re.compile(r"(?<=##)(?=[-$]?\d)|(?<=[A-Za-z]:)(?=[-$]?\d)"), r" "),
    (re.compile(rf"(answer\s*(?:is|:)+\s*){_TEXT_COMMAND.pattern}", re.IGNORECASE), r"\1\2 "),
    (HALF_OF_THE_DAY, r"\1\2\3 "),
    (EXPLAINED, without_explanation),
    (
        re.compile(
            rf"(answer\s*(?:is|:)+\s*(?:[a-z][\w'()]{{0,19}}\s*=\s*)?){_BARE_FORMULA}(?={_SENTENCE_ENDS})",
            re.IGNORECASE,
        ),
        r"\1\\(\2\\) ",
    ),
    (
        re.compile(
            r"(answer\s*(?:is|:)+\s*(?:\$[^$\n]{1,300}\$|\\\([^\n]{1,300}?\\\)))\s*,\s+which\b(?:[^.\n]|\.(?=\d))*",
            re.IGNORECASE,
        ),
        r"\1",
    ),
    (re.compile(rf"(answer\s*(?:is|:)+\s*)({_POINT})(?=\s*(?:[.!\n]|$))", re.IGNORECASE), r"\1\\(\2\\) "),
    (re.compile(rf"(answer\s*(?:is|:)+\s*)[(\[\"'\u201c]\s*({_NUMBER})\s*[)\]\"'\u201d]", re.IGNORECASE), r"\1\2 "),
)
"""Marks around a number, beside which math-verify would not see it, and what comes in their place."""
_MARKS_AT_THE_END = (
    (re.compile(rf"(?<![^\s=:])(?<!\band\s)(?<!\bor\s)(?<![)\]],\s)({_POINT})[.!\s]*\Z"), r" \\(\1\\)"),
    (re.compile(rf"(?:^[ \t]*|[=:][ \t]*|\bis[ \t]+)\(({_NUMBER})\)[.!\s]*\Z", re.MULTILINE), r" \1"),
)
"""The same of what ends a text without an announced answer. A number may also be that of a formula: "by (3)."."""
_CHOICE_IN_BRACKETS = re.compile(r"(?<!\w)\(([A-J])\)")
_OPTION = re.compile(
    r"(\\boxed\s*\{\s*|answer\s*(?:is|:)+\s*)(?:\\text\w*\s*\{\s*\(?([A-J])\)\s*\}|\(?([A-J])\))"
    r"(?:\\[ ,;:]|\\q?quad|~|\s)++(?!or\b|and\b|[^\n]*?\b[A-J]\))(?=[-\d$]|\\(?:d?frac|sqrt|pi|text)|[a-z]{2})([^\n]*)",
    re.IGNORECASE,
)
"""A choice with what it says: `(C) 12`."""
_PRONOUN = re.compile(r"\bI(?=['\u2019]?\s*[a-z])")
_JOINS_BOXES = re.compile(r"[\s$]*(?:[,;]|and|or|,\s*and|,\s*or)[\s$]*")

_ARROW = re.compile(r"\\(?:long)?(?:left)?(?:right)?arrow\b|\\(?:to|mapsto|implies|iff|lor|vee)\b", re.IGNORECASE)
"""Of what stands on its sides, math-verify reads one."""
_SUBSCRIPT_BEGINS = re.compile(r"(?:[A-Za-z}]\s*_|\\underset)\s*\{")
"""Of a letter or a command; the arrow in it says where a variable goes, as in that of a limit."""

_ANNOUNCEMENT = re.compile(r"answer(?:\s+is|\s+are|\s*:)\s*:?\s*(?:either\s+)?", re.IGNORECASE)
_ANOTHER = r"\$?(?:-?\d[\d.,/]*(?<=\d)|\(?[A-J]\)?(?!\w|\.[em]\b)|(?:yes|no|true|false)\b)\$?"
_COMPARED = r"(?:more|less|fewer|greater|higher|lower|larger|smaller|above|below)\b(?!\s+\w+ly\b)"
_CLAUSE_ENDS = r"(?=\s*(?:[.,;:!?)\n]|$|(?:or|and)\b))"
_SEVERAL = re.compile(
    rf"(?:\([^\s()]+\)|[^\s,;/()\[\]]+)(?:[,;]?\s+or\s+{_ANOTHER}|(?:[,;]\s+(?:and\s+)?|\s+and\s+){_ANOTHER}{_CLAUSE_ENDS})",
    re.IGNORECASE,
)
"""An answer with another one behind it: "7 or 8", and where a clause ends with it "7, 8" and "7 and 8"."""

_OR_MORE = re.compile(rf"\bor\s+{_COMPARED}", re.IGNORECASE)
_VALUE = rf"(?:\w{{1,20}}ly\s+|equal\s+to\s+)?(?:{_ANOTHER}|[$\\])"
_NO_VALUE = re.compile(
    r"(?:(?:no|\w{1,20}ly)[\s*]+)?"
    r"(?:not|never|neither|between|over|under|above|below|up\s+to|at\s+(?:least|most)|anything\s+but"
    rf"|{_COMPARED}\s+than(?:\s+or)?)[\s*]+{_VALUE}"
    rf"|[^\s,;]{{1,60}}\s+(?:or\s+{_COMPARED}|at\s+(?:least|most)\b)",
    re.IGNORECASE,
)
"""What is said of a number that is not the answer: "not 5", "between 5 and 6", "5 or more"."""
_DENIAL = re.compile(
    rf"(?:answer(?:\s+(?:is|are|was)\b|\s*:)[\s*:]*+(?:{_NO_VALUE.pattern})"
    rf"|answer\s+(?:(?:is|are|was|ca|could)n['\u2019]t|can\s?not)\s+(?:be\s+)?{_VALUE})"
    r"(?:\$[^$\n]*\$|(?!\bbut\b)[^.,;:!?\n]|[.,:](?=\d))*+"
    rf"|\A[\s*:]*+(?:{_NO_VALUE.pattern})(?:(?<=\$)[^$\n]*\$|\S*)(?:\s+and\s+(?:\$[^$\n]*\$|\S+))?"
    r"(?=\s*(?:[.,;]|\n|\bbut\b|\Z))",
    re.IGNORECASE,
)
"""Where it is announced, with the rest of its clause, or is the text."""

_BASE = re.compile(r"\d\s*_\s*\{?\s*(\d+)")

_STARTS_A_SET = re.compile(r"(?:^|=|\\in)\s*\\\{")

_BRACKET = re.compile(r"(?<!\\)[(\[{)\]}]|\\[{}]")
_CHAIN = re.compile(r"(?:\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|log|ln|lg|exp)h?(?![a-z])\s*|[A-Za-z\d]\s*[_^]\s*){8}")
"""Of functions, subscripts or powers without brackets, which nest as well."""
_PARAGRAPH_ENDS = re.compile(r"\n[ \t]*\n")
_DEEPEST = 10
"""Brackets in brackets, which math-verify reads in a second at most; answers of DeepMath have two."""

_LEAST_AGREEMENT = 1e-3
"""Of two numbers, relative."""

_NUM_CACHED_TRUTHS = 64
"""Of one prompt come several responses in a row; more would only hold memory."""


def score(response: str, ground_truth: str, is_truncated: bool) -> Score:  # noqa: PLR0911 a verdict each
    """Score one answer. May never return."""
    truth = _parse_truth(ground_truth)
    if not truth:
        return UNPARSABLE_GROUND_TRUTH
    truth_words = _words(truth)
    is_choice = any(word.upper() in _CHOICES for word in truth_words)
    can_announce_words = is_choice or any(word in _VERDICTS for word in truth_words)
    text = _BLANKS.sub(lambda run: "\n" * min(run[0].count("\n"), 2) or ("~" if "~" in run[0] else " "), response)
    text, is_whole = _decisive_part(text if is_truncated else _LAST_LINE.sub("Answer: ", text))
    if not (_OR_MORE.search(ground_truth) or _NO_VALUE.match(ground_truth.strip())):
        boxes = _final_boxes(text)
        if _OR_MORE.search(boxes):
            return _WRONG_ANSWER
        text = boxes or _without_denials(text)
    end = "}" if _BOX_BEGINS.match(text) else "."
    text = _OPTION.sub(rf"\1\2\3{end}" if is_choice else r"\1\4", text)
    answer = _parse_answer(text, can_announce_words, is_truncated=is_truncated, is_whole=is_whole)
    if not answer:
        return TRUNCATED if is_truncated else _NO_ANSWER
    if not isinstance(answer[0], FiniteSet) and _offers_several(text):
        return _WRONG_ANSWER
    truth, answer = math_notation.comparable_residues(truth, answer)
    if truth_words & _words(answer):
        return CORRECT
    if truth_words.intersection(_VERDICTS):
        return _WRONG_ANSWER
    if verify(truth, answer, timeout_seconds=None):
        return CORRECT if _is_one_claim(truth, answer) and _are_close(truth, answer) else _WRONG_ANSWER
    return UNPARSABLE_GROUND_TRUTH if math_truths.problem(ground_truth) else _WRONG_ANSWER


def prepare_scoring() -> None:
    """Compile the expressions and load the grammar, which takes a good part of a second the first time."""
    # It warns that its time limits are off; ours is the process.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    for is_truncated in (False, True):
        score("So $x = 1$. The answer is \\boxed{\\frac{1}{2}}.", "0.5", is_truncated)
        score("The answer is Yes.", "Yes", is_truncated)
    score("\\boxed{\\{1, 2\\}}", "[1, 2)", is_truncated=False)


@functools.lru_cache(maxsize=_NUM_CACHED_TRUTHS)
def _parse_truth(ground_truth: str) -> list[Any]:
    """Give formulas and texts that stand for the ground truth, none when it cannot be read."""
    bare = ground_truth.replace("\\$", "").strip()
    return _parse_bare(bare) if bare else []


def _decisive_part(response_text: str) -> tuple[str, bool]:
    """What the last `<answer></answer>` holds, if no box comes after it, else all; and whether it is that alone."""
    tags = list(_ANSWER_TAG.finditer(response_text))
    if not tags or _final_boxes(response_text[tags[-1].end() :]):
        return response_text, False
    return tags[-1][1], True


def _parse_answer(text: str, can_announce_words: bool, *, is_truncated: bool, is_whole: bool) -> list[Any]:
    boxes = _final_boxes(text)
    if boxes:
        return _parse_formula(_BOX_ENDS.sub("}", boxes), _ANYWHERE)
    if is_whole and not _is_prose(text):
        return _parse_bare(text.strip()) if text.strip() else []
    configs = _ANNOUNCED if is_truncated and not is_whole else _ANYWHERE
    text = math_notation.readable(_after_nested(text))
    for mark, replacement in _MARKS if _ANNOUNCEMENT.search(text) else (*_MARKS, *_MARKS_AT_THE_END):
        text = mark.sub(replacement, text)
    if not can_announce_words:
        return _parse(text, configs)
    return _parse(_PRONOUN.sub("we", _CHOICE_IN_BRACKETS.sub(r"\1", text)), (*configs, _ANNOUNCED_WORDS))


def _after_nested(text: str) -> str:
    """What stands after the last paragraph that is nested too deep."""
    paragraphs = _PARAGRAPH_ENDS.split(text)
    last = max((index for index, paragraph in enumerate(paragraphs) if _is_nested(paragraph)), default=None)
    return text if last is None else "\n\n".join(paragraphs[last + 1 :])


def _is_nested(text: str) -> bool:
    """Whether it is nested too deep, also by brackets that never close."""
    depth = 0
    for match in _BRACKET.finditer(text):
        depth = max(depth + (1 if match.group()[-1] in "([{" else -1), 0)
        if depth > _DEEPEST:
            return True
    return _CHAIN.search(text) is not None


def _is_prose(text: str) -> bool:
    """Whether words stand beside an answer."""
    num_words = len(_PROSE.findall(text))
    return num_words > 1 or (num_words == 1 and any(sign.isdecimal() for sign in text))


def _offers_several(text: str) -> bool:
    """Whether several answers are announced in words at the end, of which math-verify would read the first."""
    text = EXPLAINED.sub(without_explanation, text)
    announced = list(_ANNOUNCEMENT.finditer(text))
    return bool(announced) and not _final_boxes(text) and _SEVERAL.match(text, announced[-1].end()) is not None


def _without_denials(text: str) -> str:
    """Cut out what is said of values that are not the answer; with no other announced, what stands before it, too."""
    kept = _DENIAL.split(text)
    return "".join(kept) if any(_ANNOUNCEMENT.search(part) for part in kept) else kept[-1]


def _are_close(truth: list[Any], answer: list[Any]) -> bool:
    """Whether numbers that are equal to six decimals also agree relative to their size."""
    values, others = ([each.evalf() for each in parsed if _is_number(each)] for parsed in (truth, answer))
    pairs = [(value, other) for value in values for other in others if abs(value - other).is_comparable]
    return not pairs or any(
        abs(value - other) <= _LEAST_AGREEMENT * max(abs(value), abs(other)) for value, other in pairs
    )


def _is_number(parsed: Any) -> bool:
    return isinstance(parsed, Expr) and bool(parsed.is_number) and bool(parsed.is_finite)


def _is_one_claim(truth: list[Any], answer: list[Any]) -> bool:
    """Whether an answer that math-verify finds right claims nothing else."""
    if _has_arrow(answer):
        return _has_arrow(truth)
    if _takes_set_for_point(truth, answer) or _are_in_other_bases(truth, answer):
        return False
    formula = answer[0]
    if isinstance(truth[0], Eq | And) or not isinstance(formula, Eq | And):
        return True
    equations = formula.args if isinstance(formula, And) else (formula,)
    return all(isinstance(each, Eq) and _is_sound(each, truth) for each in equations)


def _takes_set_for_point(truth: list[Any], answer: list[Any]) -> bool:
    """Whether one has a set in braces where the other has a point or an interval; also of their elements."""
    one, other = (parsed[0].rhs if isinstance(parsed[0], Eq) else parsed[0] for parsed in (truth, answer))
    if (
        isinstance(one, FiniteSet | Tuple)
        and isinstance(other, FiniteSet | Tuple)
        and _num_sets(one) != _num_sets(other)
    ):
        return True
    pairs = ((one, truth, other), (other, answer, one))
    return any(
        isinstance(formula, FiniteSet) and isinstance(instead, Interval | Tuple) and _is_in_braces(parsed)
        for formula, parsed, instead in pairs
    )


def _are_in_other_bases(truth: list[Any], answer: list[Any]) -> bool:
    """Whether both name bases of their numbers, which math-verify does not read, and not the same."""
    bases, others = (
        {base for part in parsed if isinstance(part, str) for base in _BASE.findall(part)} for parsed in (truth, answer)
    )
    return bool(bases and others) and bases != others


def _num_sets(collection: FiniteSet | Tuple) -> int:
    """Inside of it, where they were in braces."""
    return sum(isinstance(each, FiniteSet) for arg in collection.args for each in preorder_traversal(arg))


def _is_in_braces(parsed: list[Any]) -> bool:
    return any(_STARTS_A_SET.search(part) for part in parsed if isinstance(part, str))


def _has_arrow(parsed: list[Any]) -> bool:
    """Whether a text has an arrow outside of subscripts."""
    return any(_ARROW.search(_without_subscripts(part)) for part in parsed if isinstance(part, str))


def _without_subscripts(text: str) -> str:
    kept, begins, closings = "", 0, _closings(text)
    for match in _SUBSCRIPT_BEGINS.finditer(text):
        if match.start() >= begins:
            kept += text[begins : match.start()]
            begins = closings.get(match.end(), len(text))
    return kept + text[begins:]


def _is_sound(equation: Eq, truth: list[Any]) -> bool:
    """Whether each side names the unknown or is the truth; two bare numbers say nothing."""
    if all(isinstance(side, Number) for side in equation.args):
        return False
    for side in equation.args:
        is_named = bool(side.free_symbols or side.atoms(AppliedUndef)) or not isinstance(side, Expr)
        if not is_named and not verify(truth, [side], timeout_seconds=None):
            return False
    one, other = equation.args
    if not all(isinstance(side, Expr) and not side.is_Matrix for side in equation.args):
        return True
    difference = expand(one - other)
    return difference == 0 or not isinstance(difference, Number)


def _final_boxes(text: str) -> str:
    r"""Cut out the last closed `\boxed{}`, with those before it that belong to it, as in two roots of an equation.

    math-verify alone would join boxes over half a page whenever a comma follows the first.
    """
    start, end, closings = 0, 0, _closings(text)
    for match in reversed(list(_BOX_BEGINS.finditer(text))):
        closed = closings.get(match.end())
        if closed is None:
            continue
        if not end:
            end = closed
        elif not _JOINS_BOXES.fullmatch(text, closed, start):
            break
        start = match.start()
    return text[start:end]


def _closings(text: str) -> dict[int, int]:
    """The position after each brace that opens, and after the one that closes it."""
    closings: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            opened.append(match.end())
        elif match.group() == "}" and opened:
            closings[opened.pop()] = match.end()
    return closings


def _parse_bare(text: str) -> list[Any]:
    """Read a formula that may come without delimiters."""
    if any(delimiter in text for delimiter in _DELIMITERS):
        return _parse_formula(text, _ANYWHERE)
    return _parse_formula(f"${text}$", _ANYWHERE) or _parse_formula(text, _ANYWHERE)


def _parse_formula(text: str, configs: tuple[Any, ...]) -> list[Any]:
    """Read a number as programs write it, and one of per cent as it stands and as a share."""
    if _is_nested(text):
        return []
    text = math_notation.readable(text)
    bare = _PERCENT.sub("", text)
    parsed = _parse(_SCIENTIFIC.sub(r"\1 \\times 10^{\2}", bare), configs)
    if bare != text and parsed and _is_number(parsed[0]):
        parsed.append(parsed[0] / 100)
    return parsed


def _parse(text: str, configs: tuple[Any, ...]) -> list[Any]:
    """An escaped dollar is money; math-verify would take it for the beginning of a formula."""
    return math_notation.without_misreading(parse(text.replace("\\$", ""), configs, parsing_timeout=None))


def _words(parsed: list[Any]) -> set[str]:
    r"""Give the texts that are words, bare and in lower case: `\text{(A)}.` becomes `a`."""
    texts = (part for part in parsed if isinstance(part, str))
    bare = (_TEXT_COMMAND.sub(r"\1", text).strip(" \t\n.,:;()$").casefold() for text in texts)
    return {text for text in bare if _WORD.fullmatch(text)}
