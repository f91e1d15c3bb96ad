"""A YAML file as plain values, with the line of every key: YAML 1.2, nothing more.

Built on ruamel.yaml's composer, so that duplicate keys can be told with both lines, variables are
replaced inside scalars only (their text can never become structure), and no tag constructs anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError
from pipeline.lookup import near_miss

Path = tuple[str, ...]
MAX_NODES = 100_000
"""More nodes than this, aliases counted each time, is no pipeline but a bomb."""

_VARIABLE = re.compile(r"\$(\$)?\{([^}]*)\}")
_PREFIX = "tag:yaml.org,2002:"


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
    data = reader.read(text, name)
    for setting in settings:
        reader.override(data, setting)
    return Document(name, data, reader.origins)


class _Reader:
    def __init__(self, name: str, variables: Mapping[str, str]) -> None:
        from ruamel.yaml import YAML

        self.yaml = YAML(typ="rt")
        self.name = name
        self.variables = variables
        self.origins: dict[Path, str] = {(): f"{name}:1"}
        self.count = 0

    def read(self, text: str, name: str, path: Path = ()) -> Any:
        from ruamel.yaml.error import MarkedYAMLError, YAMLError

        try:
            node = self.yaml.compose(text)
        except MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise ConfigError(f"{name}:{line}: not valid YAML: {error.problem}") from None
        except YAMLError as error:
            raise ConfigError(f"{name}: not valid YAML: {error}") from None
        return self._value(node, path) if node is not None else None

    def override(self, data: Any, setting: str) -> None:
        key, eq, text = setting.partition("=")
        path = tuple(key.split("."))
        if not eq or not all(path):
            raise ConfigError(f"--set {setting}: expected key=value, such as stages.search.k=12")
        at = data
        for i, part in enumerate(path[:-1]):
            if not isinstance(at, dict) or part not in at:
                miss = near_miss(part, at if isinstance(at, dict) else ())
                raise ConfigError(f"--set {setting}: no {'.'.join(path[: i + 1])!r} in {self.name}{miss}")
            at = at[part]
        if not isinstance(at, dict):
            raise ConfigError(f"--set {setting}: {'.'.join(path[:-1])!r} holds no keys in {self.name}")
        at[path[-1]] = self.read(text, f"--set {setting}", path)
        self.origins[path] = f"--set {setting}"

    def _value(self, node: Any, path: Path) -> Any:
        self.count += 1
        if self.count > MAX_NODES:
            raise ConfigError(f"{self.name}: more than {MAX_NODES} values, aliases counted: not a pipeline")
        kind = type(node).__name__
        if kind == "MappingNode":
            return self._mapping(node, path)
        if kind == "SequenceNode":
            return [self._value(item, (*path, str(i))) for i, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            at = (*path, key)
            if key in found:
                first = self.origins[at].rpartition(":")[2]
                raise ConfigError(
                    f"{self.name}:{line}: {'.'.join(at)}: this key stands twice, first in line {first}; "
                    f"remove one"
                )
            self.origins[at] = f"{self.name}:{line}"
            found[key] = self._value(value_node, at)
        return found

    def _scalar(self, node: Any, path: Path) -> Any:
        text = self._replace(node.value, path)
        tag = str(node.tag)
        if text != node.value and node.style is None:
            tag = str(self.yaml.resolver.resolve(type(node), text, (True, False)))
        kind = tag.removeprefix(_PREFIX)
        if kind not in _READERS:
            line = node.start_mark.line + 1
            raise ConfigError(f"{self.name}:{line}: {'.'.join(path)}: the tag {tag!r} is not allowed here")
        return _READERS[kind](text)

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


def _integer(text: str) -> int:
    return int(text.replace("_", ""), 0) if text[:2].lower() in ("0x", "0o") else int(text)


def _real(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


_READERS: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": _integer,
    "float": _real,
    "bool": lambda text: text.lower() == "true",
    "null": lambda _: None,
}
