"""Writes data files as other tools do, for tests."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_lines(path: Path, *rows: object) -> Path:
    """As JSON lines; a text is a line as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def write_parquet(path: Path, rows: list[dict[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def write_saved(folder: Path, rows: list[dict[str, object]], split: str | None = None) -> Path:
    """As `Dataset.save_to_disk` does: an Arrow stream, and a state that names it."""
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as file,
    ):
        file.write_table(table)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "f", "_split": split}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def write_saved_splits(folder: Path, **splits: list[dict[str, object]]) -> Path:
    """As `DatasetDict.save_to_disk` does."""
    for name, rows in splits.items():
        write_saved(folder / name, rows, name)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return folder


def write_cached(cache: Path, kind: str, repository: str, files: dict[str, Path | str], commit: str = "c" * 40) -> Path:
    """As huggingface_hub lays out what it has downloaded: blobs, and a snapshot of links to them."""
    folder = cache / f"{kind}s--{repository.replace('/', '--')}"
    for number, (name, content) in enumerate(files.items()):
        blob = folder / "blobs" / f"{commit[:8]}{number}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content.read_bytes() if isinstance(content, Path) else content.encode())
        link = folder / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    return folder / "snapshots" / commit


def write_arrow(path: Path, table: pa.Table) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    return path
