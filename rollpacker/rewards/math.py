r"""Scores math answers with math-verify: LaTeX, numbers, sets, intervals, and words such as `Yes`.

The answer is what the last `\boxed{}` (or several, joined by commas or `and`) or `<answer></answer>` holds, else an
announced one ("the answer is 3"), else the last formula or number of the text; of a truncated response the latter does
not count, and of thoughts nothing does (`thoughts`). The ground truth may come bare, in `$...$` or in `\boxed{}`,
and be a choice with what it says (`(C) 12`). A sign of per cent or the half of the day at its end, or at that of an
answer, may be left out.

* `correct`, `wrong_answer`;
* `no_answer`: nothing in the response can be read as one; `truncated` when it also ended at the length limit;
* `unparsable_ground_truth`: the prompt file's answer cannot be read (`math_truths`), and the response is not the same.

What math-verify misreads is rewritten first, or compared as text (`math_notation`).

An answer must claim one thing: of `5=6=7`, `8 \to 7`, "7 or 8" and "not 7" math-verify alone would accept a part
(`math_claims`). Small numbers must agree to one part in a thousand. `\{1, 2\}` is not `(1, 2)`; `1, 2` may be either.
Of `1, 1, 2` all three count.
An interval may be given by its bounds (`3 < x < 5`), but not by an inequality to solve (`2x < 6`), nor a union at all.

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
from sympy import FiniteSet

from rollpacker.data.math_boxes import BOX_BEGINS, final_boxes
from rollpacker.rewards import math_notation, math_truths
from rollpacker.rewards.math_claims import are_close, gives_bounds, is_number, is_one_claim
from rollpacker.rewards.math_explanations import EXPLAINED, without_explanation
from rollpacker.rewards.scores import CORRECT, TRUNCATED, UNPARSABLE_GROUND_TRUTH, Score
from rollpacker.rewards.thoughts import without_thoughts

_WRONG_ANSWER = Score(0.0, "wrong_answer")
_NO_ANSWER = Score(0.0, "no_answer")

_ANYWHERE = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
_ANNOUNCED = (
    LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False),
    ExprExtractionConfig(try_extract_without_anchor=False),
)

_VERDICTS = ("yes", "no", "true", "false")
"""As formulas these are products of letters, so that `no` would equal `on`: they are compared as words only."""
_LONG_WORD = re.compile(r"[^\W\d_]{4}")
"""Two such are compared as words, too: `seat` is not `east`. Shorter ones are factors: `lwh` is `hlw`, and so `cat` is
`act`."""
_CHOICES = tuple("ABCDEFGHIJ")
"""As many as MMLU-Pro has."""
_SPELLINGS = (*_CHOICES, *(spelling for word in _VERDICTS for spelling in (word, word.capitalize(), word.upper())))
_ANNOUNCED_WORDS = StringExtractionConfig(strings=_SPELLINGS, try_extract_without_anchor=False, lowercase=False)

_DELIMITERS = ("$", "\\boxed", "\\(", "\\[")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|operatorname)\s*\{([^{}]*)\}")
_WORD = re.compile(r"[^\W\d_]+(?:[ -][^\W\d_]+)*")

_BLANKS = re.compile(r"(?:\s|~|(?<!\\)\\ ){3,}")
"""Of a long run, patterns here and in math-verify would take a time that grows with its square or cube."""
_BOX_ENDS = re.compile(r"(?<![\\.,;])[.,;]\s*\}$")
"""With the end of the sentence in it, of which math-verify reads nothing."""
_PERCENT = re.compile(r"\s*(?:\\?%|percent)(?=\s*[}$]*\s*$)")
_SCIENTIFIC = re.compile(r"(?<![\w.])(-?\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})(?![\w.])")
"""As programs write numbers; math-verify would read Euler's number."""
_ANSWER_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_LAST_LINE = re.compile(r"^####(?!#)(?![^\n]*answer)\s*(?=[^\n]+\s*\Z)", re.MULTILINE | re.IGNORECASE)
"""Of which GSM8K's solutions have their answer."""
_PROSE = re.compile(
    r"(?<![\\{A-Za-z])[A-Za-z]{4,}(?![A-Za-z}(])"
    r"|(?<!\S)(?<![-+*/=<>&]\s)[A-Za-z]{2,3}(?![^\s.,;:!?'\u2019])(?!\s[-+*/=<>&]\s)"
    r"|(?<=\d\s)[A-Za-z]{2}(?=[\^/])"
)
"""A word: no name in braces, no function, and of two or three letters no factors beside a formula's sign; or a unit."""
_NUMBER = r"-?\d[\d.,/]*"
_COORDINATE = r"-?\d[\d./]*"
_POINT = rf"(?!\(\d{{1,3}}(?:,\d{{3}})+\))[(\[]\s*{_COORDINATE}(?:\s*,\s*{_COORDINATE})+\s*[)\]]"
"""Or an interval, but no `(1,234)`."""
_BARE_FORMULA = (
    r"(?!\s|\\[(\[])"
    r"(?=[^\n$]{0,300}?(?:\\[a-z]|[\w)}]\s?[-+^:*<>]\s?[\w({]|\d[a-z]|[a-z]\(|\d,\s+-?\d)|[a-z]?\s{0,3}[<>/])"
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
    (
        re.compile(r"(answer\s*(?:is|:)+\s*(?:[a-z][\w'()]{0,19}\s*=\s*)?)(\d[\d:]*_\{[ap]m\})", re.IGNORECASE),
        r"\1\\(\2\\) ",
    ),
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
_SEPARATE_FORMULAS = re.compile(r"(?:\$[^$;]+\$|[-\d.]+)(?:\s*;\s*(?:\$[^$;]+\$|[-\d.]+))+")
"""Each with its own delimiters, of which math-verify would read the last alone."""
_CHOICE_IN_BRACKETS = re.compile(r"(?<!\w)\(([A-J])\)")
_BLANK = r"(?:\\[ ,;:]|\\q?quad|~|\s)"
_OPTION = re.compile(
    r"(\\boxed\s*\{\s*|answer\s*(?:is|:)+\s*)"
    rf"(?:\\(?:text\w*|math(?:rm|bf))\s*\{{\s*\(?([A-J])\){_BLANK}*\}}|\(?([A-J])\)(?={_BLANK})){_BLANK}*"
    r"(?=[-\d$]|\\(?:\$|d?frac|sqrt|pi|text)|[a-z]{2})(?!or\b|and\b|[^\n]*?\b[A-J]\))([^\n]*)",
    re.IGNORECASE,
)
"""A choice with what it says: `(C) 12`."""
_PRONOUN = re.compile(r"\bI(?=['\u2019]?\s*[a-z])")

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

_BRACKET = re.compile(r"(?<!\\)[(\[{)\]}]|\\[{}]")
_CHAIN = re.compile(r"(?:\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|log|ln|lg|exp)h?(?![a-z])\s*|[A-Za-z\d]\s*[_^]\s*){8}")
"""Of functions, subscripts or powers without brackets, which nest as well."""
_PARAGRAPH_ENDS = re.compile(r"\n[ \t]*\n")
_DEEPEST = 10
"""Brackets in brackets, which math-verify reads in a second at most; answers of DeepMath have two."""

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
    text = _BLANKS.sub(_shortened, without_thoughts(response))
    text, is_whole = _decisive_part(text if is_truncated else _LAST_LINE.sub("Answer: ", text))
    if not (_OR_MORE.search(ground_truth) or _NO_VALUE.match(ground_truth.strip())):
        boxes = final_boxes(text)
        if _OR_MORE.search(boxes):
            return _WRONG_ANSWER
        text = boxes or _without_denials(text)
    end = "}" if BOX_BEGINS.match(text) else "."
    text = _OPTION.sub(rf"\1\2\3{end}" if is_choice else r"\1\4", text)
    answer = _parse_answer(text, can_announce_words, is_truncated=is_truncated, is_whole=is_whole)
    if not answer:
        return TRUNCATED if is_truncated else _NO_ANSWER
    if not isinstance(answer[0], FiniteSet) and _offers_several(text):
        return _WRONG_ANSWER
    truth, answer = math_notation.comparable_residues(truth, answer)
    answer_words = _words(answer)
    if truth_words & answer_words:
        return CORRECT
    if truth_words.intersection(_VERDICTS) or (_has_long_word(truth_words) and _has_long_word(answer_words)):
        return _WRONG_ANSWER
    if verify(truth, answer, timeout_seconds=None, allow_set_relation_comp=gives_bounds(truth, answer)):
        return CORRECT if is_one_claim(truth, answer) and are_close(truth, answer) else _WRONG_ANSWER
    return UNPARSABLE_GROUND_TRUTH if math_truths.problem(ground_truth) else _WRONG_ANSWER


def prepare_scoring() -> None:
    """Compile the expressions and load the grammar, which takes a good part of a second the first time."""
    # It warns that its time limits are off; ours is the process.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    for is_truncated in (False, True):
        score("So $x = 1$. The answer is \\boxed{\\frac{1}{2}}.", "0.5", is_truncated)
        score("The answer is Yes.", "Yes", is_truncated)
    score("\\boxed{\\{1, 2\\}}", "[1, 2)", is_truncated=False)


def _shortened(blanks: re.Match[str]) -> str:
    """Keep a line's or a paragraph's end, and a tie."""
    return "\n" * min(blanks[0].count("\n"), 2) or ("~" if "~" in blanks[0] else " ")


@functools.lru_cache(maxsize=_NUM_CACHED_TRUTHS)
def _parse_truth(ground_truth: str) -> list[Any]:
    """Give formulas and texts that stand for the ground truth, none when it cannot be read."""
    bare = ground_truth.replace("\\$", "").strip()
    option = _OPTION.fullmatch(bare if BOX_BEGINS.match(bare) else f"\\boxed{{{bare.strip('$')}}}")
    if option:
        return [*_parse_bare(option[4].removesuffix("}")), option[2] or option[3]]
    return _parse_bare(bare) if bare else []


def _decisive_part(response_text: str) -> tuple[str, bool]:
    """What the last `<answer></answer>` holds, if no box comes after it, else all; and whether it is that alone."""
    tags = list(_ANSWER_TAG.finditer(response_text))
    if not tags or final_boxes(response_text[tags[-1].end() :]):
        return response_text, False
    return tags[-1][1], True


def _parse_answer(text: str, can_announce_words: bool, *, is_truncated: bool, is_whole: bool) -> list[Any]:
    boxes = final_boxes(text)
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
    """Whether words stand beside an answer, and are not all of it."""
    if _WORD.fullmatch(text.strip(" \n.")):
        return _ANNOUNCEMENT.search(text) is not None
    num_words = len(_PROSE.findall(text))
    return num_words > 1 or (num_words == 1 and any(sign.isdecimal() for sign in text))


def _offers_several(text: str) -> bool:
    """Whether several answers are announced in words at the end, of which math-verify would read the first."""
    text = EXPLAINED.sub(without_explanation, text)
    announced = list(_ANNOUNCEMENT.finditer(text))
    return bool(announced) and not final_boxes(text) and _SEVERAL.match(text, announced[-1].end()) is not None


def _without_denials(text: str) -> str:
    """Cut out what is said of values that are not the answer; with no other announced, what stands before it, too."""
    kept = _DENIAL.split(text)
    return "".join(kept) if any(_ANNOUNCEMENT.search(part) for part in kept) else kept[-1]


def _parse_bare(text: str) -> list[Any]:
    """Read a formula that may come without delimiters."""
    if _SEPARATE_FORMULAS.fullmatch(text):
        text = text.replace("$", "")
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
    if bare != text and parsed and is_number(parsed[0]):
        parsed.append(parsed[0] / 100)
    return parsed


def _parse(text: str, configs: tuple[Any, ...]) -> list[Any]:
    """An escaped dollar is money; math-verify would take it for the beginning of a formula."""
    text = math_notation.with_units_alone_at_the_end(text.replace("\\$", ""))
    return math_notation.without_misreading(parse(text, configs, parsing_timeout=None))


def _has_long_word(words: set[str]) -> bool:
    return any(_LONG_WORD.search(word) for word in words)


def _words(parsed: list[Any]) -> set[str]:
    r"""Give the texts that are words, bare and in lower case: `\text{(A)}.` becomes `a`."""
    texts = (part for part in parsed if isinstance(part, str))
    bare = (_TEXT_COMMAND.sub(r"\1", text).strip(" \t\n.,:;()$").casefold() for text in texts)
    return {text for text in bare if _WORD.fullmatch(text)}
