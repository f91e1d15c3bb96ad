"""What an index on disk was made from, so that it is used again only where it fits.

The nodes of a graph that give `whole` rows (indexes, chunk stores) leave folders behind. `index.json`
beside them remembers the settings of every stage above them, the models' fingerprints, and the content
of every document. Where all of it agrees, `without_indexing` cuts the graph there; where not, the
difference is an error before any work.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pipeline.errors import Failure, IndexMismatchError, RidgewayError
from pipeline.graph import Graph, Loop, Node, node_outputs
from pipeline.program import flatten
from pipeline.values import Documents, Rows

FILE = "index.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Stored:
    """The record of an index. `settings`: node to parameter to value; `documents`: name to content hash.

    `failures`: the documents, pages and chunks that are not in it, though they were given.
    """

    settings: Mapping[str, Mapping[str, Any]]
    documents: Mapping[str, str]
    counts: Mapping[str, Any]
    failures: tuple[Failure, ...] = ()

    def save(self, folder: Path) -> None:
        """Write the record, last of all, in one move."""
        data = {
            "format": FORMAT,
            "settings": self.settings,
            "documents": self.documents,
            "counts": self.counts,
            "failures": [[list(f.id), f.stage, f.category, f.message] for f in self.failures],
        }
        part = folder / f".{FILE}.part"
        part.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(part, folder / FILE)

    def check(self, folder: Path, graph: Graph, documents: Mapping[str, str] | None) -> None:
        """Raise IndexMismatchError that names what differs: settings, models or documents."""
        found = list(_setting_differences(self.settings, settings(graph)))
        if documents is not None:
            found += _document_differences(self.documents, documents)
        if found:
            shown = "; ".join(found[:4]) + (f"; and {len(found) - 4} more" if len(found) > 4 else "")
            raise IndexMismatchError(
                f"the index in {str(folder)!r} does not fit: {shown}; build it again with --reindex, "
                f"or use another folder"
            )


def load(folder: Path) -> Stored | None:
    """The record in `folder`, None where no index was finished. Raises RidgewayError if it is damaged."""
    try:
        data = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise RidgewayError(
                f"{folder / FILE} has format {data['format']}, this is {FORMAT}: use --reindex"
            )
        failures = tuple(Failure(tuple(i), *rest) for i, *rest in data.get("failures", ()))
        return Stored(data["settings"], data["documents"], data["counts"], failures)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, RidgewayError):
            raise
        raise RidgewayError(f"{folder / FILE} is damaged ({error}): use --reindex") from None


def durable(graph: Graph) -> tuple[Node, ...]:
    """The nodes whose rows stand for the whole corpus and stay on disk."""
    return tuple(
        n for n in graph.nodes if not isinstance(n.stage, Loop) and node_outputs(n.stage)[""].whole
    )  # fmt: skip


def indexing(graph: Graph) -> Graph:
    """The part of `graph` that builds its indexes. Raises RidgewayError if there is none."""
    names = [n.name for n in durable(graph)]
    if not names:
        raise RidgewayError("this pipeline builds no index: no stage gives Indexes or Corpora")
    nodes = tuple(graph.upstream(*names))
    used = {ref for n in nodes for ref in n.inputs.values()}
    inputs = {k: v for k, v in graph.inputs.items() if k in used}
    return Graph(inputs, nodes, {name: name for name in names}, graph.policies)


def without_indexing(graph: Graph) -> tuple[Graph, dict[str, Rows]]:
    """`graph` with its indexes as inputs, and the rows for them: what is left to do once they exist."""
    given = {n.name: node_outputs(n.stage)[""] for n in durable(graph)}
    rows = {n.name: _row(given[n.name], n) for n in durable(graph)}
    needed = _reachable(graph, given)
    nodes = tuple(n for n in graph.nodes if n.name in needed)
    read = {ref.partition(".")[0] for n in nodes for ref in n.inputs.values()}
    inputs = {k: v for k, v in {**graph.inputs, **given}.items() if k in read}
    return Graph(inputs, nodes, graph.outputs, graph.policies), {k: v for k, v in rows.items() if k in read}


def _row(kind: Any, n: Node) -> Rows:
    """The row of an index that lies where its stage would put it."""
    rows: Rows = kind(((),), (str(n.stage.path),))
    return rows


def _reachable(graph: Graph, stop: Mapping[str, Any]) -> set[str]:
    """Names of the nodes that the outputs need, without what lies only behind `stop`."""
    todo = [ref.partition(".")[0] for ref in graph.outputs.values()]
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name in found or name in stop or name in graph.inputs:
            continue
        found.add(name)
        todo += [ref.partition(".")[0] for ref in graph[name].inputs.values()]
    return found


def settings(graph: Graph) -> dict[str, dict[str, Any]]:
    """All that decides what the indexes of `graph` hold (stages, parameters, models), not where."""
    found = {}
    for n in graph.upstream(*(d.name for d in durable(graph))):
        given = {f.name: _plain(getattr(n.stage, f.name)) for f in fields(n.stage) if f.name != "path"}
        identity = getattr(n.stage, "identity", dict)
        found[n.name] = {"stage": type(n.stage).__name__, **given, **identity()}
    return found


def models(graph: Graph) -> dict[str, dict[str, Any]]:
    """What each stage of a graph says of its model, by model."""
    found: dict[str, dict[str, Any]] = {}
    for s in flatten(graph).steps:
        for key in ("model", "encoder"):
            name = getattr(s.stage, key, None)
            if name is not None:
                found.setdefault(name, {}).update(getattr(s.stage, "identity", dict)())
    return found


def content(documents: Documents) -> dict[str, str]:
    """A hash of the bytes of each document, by name; one that cannot be read has none."""
    return {str(i[0]): _hash(Path(p)) for i, p in zip(documents.ids, documents.paths, strict=True)}


def _hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError:
        return ""


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def _setting_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*new, *old]):
        if name not in old or name not in new:
            yield f"stage {name!r} is {'new' if name in new else 'gone'}"
            continue
        for key in dict.fromkeys([*new[name], *old[name]]):
            was, now = old[name].get(key), new[name].get(key)
            if was != now:
                yield f"{name}.{key} was {was!r}, the pipeline asks for {now!r}"


def _document_differences(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    changes = {
        "added": [n for n in new if n not in old],
        "gone": [n for n in old if n not in new],
        "changed": [n for n in new if n in old and old[n] != new[n]],
    }
    for what, names in changes.items():
        if names:
            yield f"{len(names)} documents {what} ({names[0]!r}{', ...' if len(names) > 1 else ''})"
