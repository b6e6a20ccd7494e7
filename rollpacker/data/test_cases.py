r"""Test cases of code prompts: the fields that hold them, and reading them when a response is scored.

A line of the prompt file has one of these fields, as JSON or as a string that holds the JSON:

* `test_cases`, a list of cases of one style. Style `stdin`: `{"input": "3\n", "output": "9\n"}`. Style `function`:
  `{"args": [3], "expected": 9}`, or a text (also `{"assert": "..."}`) of Python such as `"assert square(2) == 4"`.
  Calls need the field `entry_point`, the function's name. A case may have `time_limit_s` and `memory_limit_mb`; so may
  the line, for all of its cases.
* `input_output` of APPS and TACO: `{"inputs": [...], "outputs": [...], "fn_name": "..."}`; without `fn_name` the cases
  are of style `stdin`. Some rows have each output in a list of its own: where all of a row's are lists of one element,
  the element is accepted too.
* `public_test_cases` of LiveCodeBench: `{"input", "output", "testtype"}`, the function's name in `metadata`; these
  objects are legal in `test_cases` too. Its `private_test_cases` are compressed pickles, which are never opened here:
  unpack them into `test_cases` first.
* `test_list` of MBPP (texts of Python, after its `test_setup_code` or `test_imports`), and `test` of KodCode (a file
  for pytest) or of HumanEval (with `entry_point`), which are style `function`. See `python_tests`.

Invariant: a `CodeReference` names a line that was read and accepted, and `load_test_cases` gives the very same
cases from it, or an error when the file was changed since.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence

from rollpacker.config.keys import nearest
from rollpacker.config.sections.data import CODE_FIELDS
from rollpacker.data.jsonl import JsonLine, read_line_again, shown
from rollpacker.data.python_tests import read_tests
from rollpacker.protocols.references import (
    AssertCase,
    CallCase,
    CaseLimits,
    CodeReference,
    FileLine,
    StdinCase,
    TestCase,
)

_CASE_FIELDS = ("input", "output", "args", "expected", "assert", "time_limit_s", "memory_limit_mb")
_FOREIGN_CASE_FIELDS = ("testtype", "type", "fn_name", "metadata")
_FORMS = (
    'Allowed: {"input": TEXT, "output": TEXT}, {"args": LIST, "expected": VALUE}, or a text of Python with assertions'
)
_FUNCTION_TYPES = ("functional", "function_call")
"""How LiveCodeBench and its followers call style `function`."""


def is_filled(value: object) -> bool:
    """Converted data sets fill fields that do not apply with null or blank text."""
    return value is not None and not (isinstance(value, str) and not value.strip())


def code_fields(line: JsonLine) -> list[str]:
    """Name the fields that hold test cases; those that hold an empty list only where no other does."""
    filled = [name for name in CODE_FIELDS if is_filled(line.fields.get(name))]
    return [name for name in filled if line.fields[name] != []] or filled


def read_code_reference(line: JsonLine) -> CodeReference:
    """Check the test cases of a line that has some, and return where they are.

    Raises:
        DataError: A case is wrong, or two fields hold cases.
    """
    return _read(line)[0]


def load_test_cases(reference: CodeReference) -> tuple[TestCase, ...]:
    """Read a prompt's test cases from its file; takes about as long as parsing its line.

    Raises:
        DataError: The file is gone, or was changed since it was first read.
    """
    return _read(read_line_again(reference.line))[1]


def _read(line: JsonLine) -> tuple[CodeReference, tuple[TestCase, ...]]:
    """Read all test cases of a prompt."""
    fields = code_fields(line)
    if "private_test_cases" in fields:
        raise line.error(
            "`private_test_cases` of LiveCodeBench are compressed pickles, which can run any code when opened",
            "Allowed: the same cases as JSON",
            "Unpack them into the field `test_cases`, and leave out both fields",
        )
    if len(fields) > 1:
        raise line.error(
            f"the fields {' and '.join(f'`{name}`' for name in fields)} both hold test cases",
            "Allowed: one of them",
            "Keep the one that is meant",
        )
    field = fields[0]
    value = line.fields[field] if field == "test" else _parsed(line, field)
    entry_point = _entry_point(line, field, value)
    if field == "test":
        cases: list[TestCase] = [AssertCase(source=_text(line, field, value), limits=_limits(line, "", line.fields))]
    elif field == "input_output":
        cases = _input_output_cases(line, value, entry_point)
    else:
        cases = _listed_cases(line, field, value)
    if not cases:
        raise line.error(f"`{field}` holds no test case", "Allowed: at least one", "Add some, or leave out the prompt")
    if entry_point is None and any(isinstance(case, CallCase) for case in cases):
        raise line.error(
            f"the cases of `{field}` have arguments, and no function is named",
            "Allowed: the field `entry_point` with its name",
            "Add `entry_point`",
        )
    _require_one_style(line, field, cases)
    packages: tuple[str, ...] = ()
    asserted = [(index, case) for index, case in enumerate(cases) if isinstance(case, AssertCase)]
    if asserted:
        texts = [(field if field == "test" else f"{field}[{index}]", case.source) for index, case in asserted]
        sources, packages = read_tests(line, texts, entry_point)
        for (index, case), source in zip(asserted, sources, strict=True):
            cases[index] = dataclasses.replace(case, source=source)
    assert isinstance(line.line, FileLine)  # those of a table are refused before
    return CodeReference(entry_point=entry_point, packages=packages, line=line.line), tuple(cases)


def _require_one_style(line: JsonLine, field: str, cases: Sequence[TestCase]) -> None:
    is_stdin = [isinstance(case, StdinCase) for case in cases]
    if len(set(is_stdin)) > 1:
        raise line.error(
            f"`{field}[{is_stdin.index(not is_stdin[0])}]` is of another style than `{field}[0]`",
            "Allowed: either programs that read and write text, or functions",
            "Split the prompt in two",
        )


def _listed_cases(line: JsonLine, field: str, value: object) -> list[TestCase]:
    if not isinstance(value, list):
        is_of_pairs = isinstance(value, dict) and {"inputs", "outputs"} <= value.keys()
        remedy = "Call it `input_output`" if is_of_pairs else "Write it in square brackets"
        raise line.error(f"`{field}` is {shown(value)}", "Allowed: a list of test cases", remedy)
    setup = _setup(line) if field == "test_list" else ""
    return [_listed_case(line, f"{field}[{index}]", case, setup) for index, case in enumerate(value)]


def _setup(line: JsonLine) -> str:
    """Give what MBPP runs before each of its tests."""
    imports = _parsed(line, "test_imports") or []
    if not isinstance(imports, list):
        raise line.error(
            f"`test_imports` is {shown(imports)}", "Allowed: a list of texts", "Put it into square brackets"
        )
    lines = [_string(line, f"test_imports[{index}]", each) for index, each in enumerate(imports)]
    if is_filled(code := line.fields.get("test_setup_code")):
        lines.append(_string(line, "test_setup_code", code))
    return "".join(f"{text}\n" for text in lines)


def _listed_case(line: JsonLine, where: str, case: object, setup: str) -> TestCase:
    if isinstance(case, str):
        return AssertCase(source=setup + _text(line, where, case), limits=_limits(line, where, {}))
    if not isinstance(case, dict):
        raise line.error(f"`{where}` is {shown(case)}", _FORMS, "Write the case in one of these forms")
    legal = (*_CASE_FIELDS, *_FOREIGN_CASE_FIELDS)
    for name in case:
        if name not in legal:
            close = nearest(name, legal)
            raise line.error(
                f"`{where}` has the unknown field `{name}`",
                f"Allowed: {', '.join(_CASE_FIELDS)}",
                f"Did you mean `{close[0]}`?" if close else "Delete it",
            )
    limits = _limits(line, where, case)
    match case:
        case {"assert": source}:
            return AssertCase(source=_text(line, f"{where}.assert", source), limits=limits)
        case {"args": list(args), "expected": expected}:
            return _call_case(line, where, args, (expected,), limits)
        case {"input": given, "output": output} if case.get("testtype", case.get("type")) in _FUNCTION_TYPES:
            return _call_from_text(line, where, given, output, limits)
        case {"input": given, "output": output}:
            return _stdin_case(line, where, given, output, limits)
    raise line.error(f"`{where}` is {shown(case)}", _FORMS, "Write the case in one of these forms")


def _call_from_text(line: JsonLine, where: str, given: object, output: object, limits: CaseLimits) -> CallCase:
    """LiveCodeBench writes each argument as JSON on a line of its own."""
    texts = [*_string(line, f"{where}.input", given).split("\n"), _string(line, f"{where}.output", output)]
    try:
        *args, expected = (json.loads(text) for text in texts)
    except (ValueError, RecursionError) as error:
        raise line.error(
            f"`{where}` calls a function with what is no JSON: {error}",
            "Allowed: in `input` one JSON value per line, in `output` one",
            'Write the case as {"args": LIST, "expected": VALUE}',
        ) from None
    return _call_case(line, where, args, (expected,), limits)


def _call_case(
    line: JsonLine, where: str, args: Sequence[object], accepted: tuple[object, ...], limits: CaseLimits
) -> CallCase:
    if _holds_nan(accepted):
        raise line.error(
            f"`{where}` expects NaN, which no value equals",
            "Allowed: values that a result can equal",
            "Delete the case, or expect null",
        )
    return CallCase(args=tuple(args), accepted=accepted, limits=limits)


def _holds_nan(value: object) -> bool:
    match value:
        case float():
            return math.isnan(value)
        case list() | tuple():
            return any(map(_holds_nan, value))
        case dict():
            return any(map(_holds_nan, value.values()))
    return False


def _input_output_cases(line: JsonLine, value: object, entry_point: str | None) -> list[TestCase]:
    match value:
        case {"inputs": list(inputs), "outputs": list(outputs)} if len(inputs) == len(outputs):
            pass
        case _:
            raise line.error(
                f"`input_output` is {shown(value)}",
                "Allowed: an object with the lists `inputs` and `outputs`, equally long, and perhaps `fn_name`",
                "Correct it, or leave out the prompt",
            )
    is_wrapped = all(isinstance(output, list) and len(output) == 1 for output in outputs)
    cases: list[TestCase] = []
    for index, (given, output) in enumerate(zip(inputs, outputs, strict=True)):
        where, limits = f"input_output[{index}]", _limits(line, f"input_output[{index}]", {})
        if entry_point is None:
            cases.append(_stdin_case(line, where, given, output, limits))
            continue
        if not isinstance(given, list):
            raise line.error(
                f"the input of `{where}` is {shown(given)}",
                "Allowed with `fn_name`: a list of arguments",
                "Put the arguments into a list",
            )
        accepted = (output, output[0]) if is_wrapped else (output,)
        cases.append(_call_case(line, where, given, accepted, limits))
    return cases


def _stdin_case(line: JsonLine, where: str, given: object, output: object, limits: CaseLimits) -> StdinCase:
    return StdinCase(
        input=_lines(line, f"{where}.input", given), output=_lines(line, f"{where}.output", output), limits=limits
    )


def _lines(line: JsonLine, where: str, value: object) -> str:
    """Some rows of APPS and TACO hold a list of lines."""
    if isinstance(value, list):
        return "\n".join(_string(line, where, text) for text in value)
    return _string(line, where, value)


def _entry_point(line: JsonLine, field: str, tests: object) -> str | None:
    """The function's name: in its own field, or where the public sets have it."""
    places = [
        line.fields.get("entry_point"),
        _found(tests, ("fn_name",)),
        _found(tests, (0, "fn_name")),
        _found(tests, (0, "metadata", "func_name")),
    ]
    if field == "public_test_cases":
        places.append(_found(_parsed(line, "metadata"), ("func_name",)))
    if field == "test":
        places.append(_found(_parsed(line, "test_info"), (0, "function_name")))
    name = next((place for place in places if is_filled(place)), None)
    if name is None:
        return None
    if isinstance(name, str):
        name = name.strip().removeprefix("Solution().")  # as some converted sets of LeetCode have it
    if not isinstance(name, str) or not name.isidentifier():
        raise line.error(
            f"the entry point is {shown(name)}",
            "Allowed: the name of a function in Python",
            "Write the bare name, without brackets",
        )
    return name


def _found(value: object, path: Sequence[str | int]) -> object:
    for step in path:
        match value, step:
            case dict(), str():
                value = value.get(step)
            case list(), int() if value:
                value = value[step]
            case _:
                return None
    return value


def _parsed(line: JsonLine, field: str) -> object:
    """A field as JSON, which converted data sets often hold as text; None when it is blank or not there."""
    value = line.fields.get(field)
    if not isinstance(value, str):
        return value
    if not is_filled(value):
        return None
    return line.parse_text(field, value, "Allowed: JSON, or a string that holds JSON", f"Write `{field}` as JSON")


def _limits(line: JsonLine, where: str, case: dict[str, object]) -> CaseLimits:
    """Those of the case, else those of the line."""
    found: dict[str, float | None] = {}
    for name in ("time_limit_s", "memory_limit_mb"):
        value = case.get(name, line.fields.get(name))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and math.isfinite(value) and value > 0):  # type: ignore[arg-type, operator]
            raise line.error(
                f"`{f'{where}.' if name in case and where else ''}{name}` is {shown(value)}",
                "Allowed: a number above 0, or null",
                "Correct it, or leave it out for the sandbox's own limit",
            )
        found[name] = float(value) if isinstance(value, int | float) else None
    return CaseLimits(time_s=found["time_limit_s"], memory_mb=found["memory_limit_mb"])


def _text(line: JsonLine, where: str, value: object) -> str:
    text = _string(line, where, value)
    if not text.strip():
        raise line.error(f"`{where}` is blank", "Allowed: Python with assertions", "Fill it in, or delete it")
    return text


def _string(line: JsonLine, where: str, value: object) -> str:
    if not isinstance(value, str):
        raise line.error(f"`{where}` is {shown(value)}", "Allowed: a text", "Put it into quotes")
    return value
