"""A YAML file as plain values, with the line of every key: YAML 1.2, nothing more.

Built on ruamel.yaml's composer, so that duplicate keys can be told with both lines, variables are
replaced inside scalars only (their text can never become structure), and tags are refused. Scalars are
typed here, by the core schema of YAML 1.2 (section 10.3.2): `no` and `2024-01-01` are texts, `012` is 12.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError
from pipeline.lookup import near_miss

Path = tuple[str, ...]
MAX_NODES = 100_000
"""More nodes than this, aliases counted each time, is no pipeline but a bomb."""
MAX_DEPTH = 100
"""Deeper than this is no pipeline either, nor is an alias that holds itself."""

_BRACES = "; a plain ${...} cannot stand between { and }: give the key a line of its own, or quote a text"
_VARIABLE = re.compile(r"\$(\$)?\{([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Document:
    """`data`: dicts, lists and scalars; `origins`: where each path stands ("file:12" or an option)."""

    name: str
    data: Any
    origins: Mapping[Path, str]

    def error(self, path: Path, message: str) -> ConfigError:
        """A ConfigError that begins with the place of `path`, or of its nearest parent."""
        at = path
        while at and at not in self.origins:
            at = at[:-1]
        where = self.origins.get(at, self.name)
        return ConfigError(f"{where}: {'.'.join(path)}: {message}" if path else f"{where}: {message}")


def parse(text: str, name: str, variables: Mapping[str, str], settings: tuple[str, ...] = ()) -> Document:
    """The document in `text`; `settings` are `a.b.c=value`, applied on top. Raises ConfigError."""
    reader = _Reader(name, variables)
    data = reader.read(text)
    for setting in settings:
        written = _override(data, setting, name, variables)
        reader.origins |= dict.fromkeys(written, f"--set {setting}")
    return Document(name, data, reader.origins)


def _override(data: Any, setting: str, name: str, variables: Mapping[str, str]) -> Iterable[Path]:
    """Apply a setting to `data`; returns the paths that it wrote."""
    key, eq, text = setting.partition("=")
    path = tuple(key.split("."))
    if not eq or not all(path):
        raise ConfigError(f"--set {setting}: expected key=value, such as stages.hits.k=12")
    at = data
    for i, part in enumerate(path[:-1]):
        if not isinstance(at, dict) or part not in at:
            miss = near_miss(part, at if isinstance(at, dict) else ())
            raise ConfigError(f"--set {setting}: no {'.'.join(path[: i + 1])!r} in {name}{miss}")
        at = at[part]
    if not isinstance(at, dict):
        raise ConfigError(f"--set {setting}: {'.'.join(path[:-1])!r} holds no keys in {name}")
    reader = _Reader(f"--set {setting}", variables)
    at[path[-1]] = reader.read(text, path)
    return [path, *(p for p in reader.origins if p)]


def escape(text: str) -> str:
    """`text` as it is written in a file, so that `parse` finds no variables in it."""
    return _VARIABLE.sub(lambda match: f"${match[0]}", text)


class _Reader:
    def __init__(self, name: str, variables: Mapping[str, str]) -> None:
        from ruamel.yaml import YAML

        self.yaml = YAML(typ="safe", pure=True)
        self.name = name
        self.variables = variables
        self.origins: dict[Path, str] = {(): f"{name}:1"}
        self.count = 0

    def read(self, text: str, path: Path = ()) -> Any:
        from ruamel.yaml.error import MarkedYAMLError
        from ruamel.yaml.reader import ReaderError

        name = self.name
        try:
            node = self.yaml.compose(text)
        except MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            hint = _BRACES if "${" in "".join(text.splitlines()[line - 1 : line]) else ""
            raise ConfigError(f"{name}:{line}: not valid YAML: {error.problem}{hint}") from None
        except ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            problem = str(error).splitlines()[0]
            raise ConfigError(f"{name}:{line}: not valid YAML: {problem}") from None
        except RecursionError:
            raise ConfigError(f"{name}: nested deeper than {MAX_DEPTH} levels: not a pipeline") from None
        return self._value(node, path) if node is not None else None

    def _value(self, node: Any, path: Path) -> Any:
        self.count += 1
        if self.count > MAX_NODES:
            raise ConfigError(f"{self.name}: more than {MAX_NODES} values, aliases counted: not a pipeline")
        if len(path) > MAX_DEPTH:
            raise ConfigError(f"{self.name}: nested deeper than {MAX_DEPTH} levels: not a pipeline")
        self._refuse_tag(node, path)
        kind = type(node).__name__
        if kind == "MappingNode":
            return self._mapping(node, path)
        if kind == "SequenceNode":
            return [self._value(item, (*path, str(i))) for i, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key, str):
                raise self._error(key_node, path, "a key must be a text")
            at = (*path, key)
            self._refuse_tag(key_node, at)
            if key in found:
                first = self.origins[at].rpartition(":")[2]
                raise self._error(key_node, at, f"this key stands twice, first in line {first}; remove one")
            self.origins[at] = f"{self.name}:{key_node.start_mark.line + 1}"
            found[key] = self._value(value_node, at)
        return found

    def _scalar(self, node: Any, path: Path) -> Any:
        text = self._replace(node.value, path)
        return text if node.style is not None else _typed(text)

    def _refuse_tag(self, node: Any, path: Path) -> None:
        """Raise if the file gives the node a tag: the composer's own are those that it finds by itself."""
        plain = getattr(node, "style", None) is None
        implicit = (plain, not plain) if type(node).__name__ == "ScalarNode" else True
        if str(node.tag) != str(self.yaml.resolver.resolve(type(node), node.value, implicit)):
            raise self._error(node, path, f"the tag {str(node.tag)!r} is not allowed; quote what is a text")

    def _error(self, node: Any, path: Path, message: str) -> ConfigError:
        key = f"{'.'.join(path)}: " if path else ""
        return ConfigError(f"{self.name}:{node.start_mark.line + 1}: {key}{message}")

    def _replace(self, text: str, path: Path) -> str:
        def value(match: re.Match[str]) -> str:
            if match[1]:
                return match[0][1:]
            name, has_default, default = match[2].partition(":-")
            if self.variables.get(name) or (name in self.variables and not has_default):
                return self.variables[name]
            if has_default:
                return default
            where = self.origins.get(path, self.name)
            hint = f"set it, or write ${{{name}:-default}}"
            raise ConfigError(f"{where}: {'.'.join(path)}: variable {name!r} is not set; {hint}")

        return _VARIABLE.sub(value, text)


def _typed(text: str) -> Any:
    """What a plain scalar stands for; a text where it is nothing else."""
    for pattern, read in _CORE_SCHEMA:
        if pattern.fullmatch(text):
            return read(text)
    return text


_CORE_SCHEMA: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = (
    (re.compile("null|Null|NULL|~|"), lambda _: None),
    (re.compile("true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    (re.compile("[-+]?[0-9]{1,1000}"), int),
    (re.compile("0o[0-7]+"), lambda text: int(text, 8)),
    (re.compile("0x[0-9a-fA-F]+"), lambda text: int(text, 16)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), lambda text: float(text.replace(".", ""))),
)
