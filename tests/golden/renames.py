"""What has another name now than in the recorded files: the one place to edit when a column or a class is renamed.

Added columns, fields and tables need no line: only what was recorded is compared.
"""

from __future__ import annotations

TABLES: dict[str, str] = {}
"""Recorded name of a table, or of a class of events or commands, to its name now."""

COLUMNS: dict[str, str] = {}
"""Recorded `table.column` or `Class.field`, by the recorded name of the table, to the column's name now."""

TEXTS: dict[str, str] = {}
"""A whole text in a cell now, such as an activity, to the text that was recorded for it."""

ADDED_CLASSES: frozenset[str] = frozenset()
"""Classes of events and commands that were not there when the files were recorded: their order is not compared."""
