"""Mail files: the subject, and the body as plain text.

Attachments are not read: save them beside the mail. A file in UTF-16, as some programs export it, is read as
the text it is.
"""

from __future__ import annotations

import email
import email.policy
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path

from pipeline.errors import RowError
from vision.page import Options, Page, clean, single
from vision.text import decode
from vision.web import visible


@dataclass(frozen=True, slots=True)
class MailReader:
    """An .eml file as one page."""

    def count(self, path: str, options: Options) -> int:
        """1."""
        return 1

    def read(self, path: str, number: int, options: Options) -> Page:
        """The subject, which is the heading, an empty line, and the body. Raises RowError: unreadable."""
        single(number)
        message = _parse(Path(path).read_bytes())
        subject = " ".join(clean(str(message.get("subject", ""))).split())
        text = f"{subject}\n\n{_body(message)}" if subject else _body(message)
        return Page(text=text.rstrip(), source="mail", headings=((0, subject),) if subject else ())


def _parse(data: bytes) -> EmailMessage:
    """The message; its bytes stay as they are, for parts may differ in encoding, unless it is UTF-16."""
    policy = email.policy.default
    if b"\0" in data[:4096] or data.startswith(b"\xef\xbb\xbf"):
        text = decode(data)[0].removeprefix("\ufeff")
        return email.message_from_string(text, policy=policy)
    return email.message_from_bytes(data, policy=policy)


def _body(message: EmailMessage) -> str:
    part = message.get_body(("plain", "html"))
    if part is None:
        return ""
    try:
        content = part.get_content()
    except (LookupError, UnicodeError, ValueError) as error:
        raise RowError(
            "unreadable", f"the body cannot be decoded ({error}); export the mail again"
        ) from error
    if part.get_content_subtype() == "html":
        return visible(content, "mail").text
    return clean(content)
