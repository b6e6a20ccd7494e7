"""The exhibits, by the names that the command line takes: one module per table or figure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from analysis.exhibit import Exhibit
from analysis.exhibits import fig06, fig09, fig10c, table1, table2

EXHIBITS: Mapping[str, Exhibit] = MappingProxyType(
    {
        exhibit.name: exhibit
        for exhibit in (table1.EXHIBIT, table2.EXHIBIT, fig06.EXHIBIT, fig09.EXHIBIT, fig10c.EXHIBIT)
    }
)
