"""Prompt templates: strict, sandboxed Jinja, checked before any work.

A template sees `question` and `passages` and nothing else. Every field it names is looked up when it is
checked, also in branches that a sample does not reach; unknown ones are errors, never empty text.
Deliberately not here: tokens, windows, the chat form of a model.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pipeline.errors import RidgewayError
from pipeline.lookup import near_miss

__all__ = ["DEFAULT", "PromptPassage", "check", "compiled", "read"]

DEFAULT = """\
{% for p in passages %}
[{{ p.number }}] {{ p.text }}

{% endfor %}
From the passages above only, answer in a few words and cite the passage, like [1]; if they do not say, \
answer "not in the documents".
{{ question }}
"""
"""The template that is used where none is given: small models do best with the bare question at the end."""

_FIELDS = ("question", "passages")
_FILES = (".j2", ".jinja")


@dataclass(frozen=True, slots=True)
class PromptPassage:
    """What a template sees of a passage: `number` from 1, `page` from 1, `text` normalised."""

    number: int
    document: str
    page: int
    heading: str
    text: str


def read(template: str) -> str:
    """The template's text: itself, or what the file says that it names."""
    if not template.endswith(_FILES) or "\n" in template:
        return template
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RidgewayError(
            f"template {template!r} cannot be read: {error}; give a UTF-8 text file"
        ) from error


def _environment() -> ImmutableSandboxedEnvironment:
    return ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )


def compiled(template: str) -> Template:
    """`template`, ready to render."""
    return _environment().from_string(template)


def check(template: str) -> None:
    """Raise RidgewayError where `template` cannot be parsed, names an unknown field or lacks one it needs."""
    try:
        tree = _environment().parse(template)
    except TemplateSyntaxError as error:
        raise RidgewayError(f"template, line {error.lineno}: {error.message}") from error
    used = meta.find_undeclared_variables(tree)
    _refuse_unknown(tree, used)
    for name in _FIELDS:
        if name not in used:
            raise RidgewayError(
                f"template: it never uses {name!r}; write {{{{ question }}}} and a loop over passages"
            )
    sample = PromptPassage(1, "report.pdf", 1, "Heading", "A sentence.")
    try:
        compiled(template).render(question="Who?", passages=[sample, replace(sample, number=2, heading="")])
    except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
        raise RidgewayError(f"template: {error}; it failed on two sample passages") from error


def _refuse_unknown(tree: nodes.Template, used: set[str]) -> None:
    """Raise RidgewayError for the first field that is neither ours nor a passage's, with the near miss."""
    for name in sorted(used - set(_FIELDS)):
        line = next(n.lineno for n in tree.find_all(nodes.Name) if n.name == name)
        raise RidgewayError(f"template, line {line}: no field named {name!r}{near_miss(name, _FIELDS)}")
    known = [f.name for f in fields(PromptPassage)]
    loops = tree.find_all(nodes.For)
    over = {n.target.name for n in loops if isinstance(n.target, nodes.Name) and _is_passages(n.iter)}
    for node in tree.find_all(nodes.Getattr):
        if isinstance(node.node, nodes.Name) and node.node.name in over and node.attr not in known:
            field = f"{node.node.name}.{node.attr}"
            raise RidgewayError(
                f"template, line {node.lineno}: no field named {field!r}{near_miss(node.attr, known)}"
            )


def _is_passages(node: nodes.Node) -> bool:
    """Whether a loop over `node` gives passages: the name itself, or a slice or filter of it."""
    names = [node] if isinstance(node, nodes.Name) else node.find_all(nodes.Name)
    return any(n.name == "passages" for n in names)
