"""Checksums of what prompts ask and are held against, so that a run tells of prompts edited under the same ids."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from rollpacker.protocols.references import CodeReference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollpacker.core.ids import Domain
    from rollpacker.protocols.rollout import Prompt


def contents_of(prompts: Iterable[Prompt]) -> dict[Domain, int]:
    """Give a checksum of each domain's prompts in any order: their messages, references and other fields of the row.

    It takes 4 s for a million short prompts, and 90 s for a million of 30 kB.
    """
    contents: dict[Domain, int] = {}
    for prompt in prompts:
        reference = prompt.reference
        against = reference.line.digest if isinstance(reference, CodeReference) else reference
        text = repr((prompt.key, prompt.as_written, against, prompt.row)).encode(errors="surrogatepass")
        digest = int.from_bytes(blake2b(text, digest_size=8).digest())
        contents[prompt.domain] = (contents.get(prompt.domain, 0) + digest) % 2**64
    return contents
