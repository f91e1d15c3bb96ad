"""Files and pages to text and pixels.

`READERS` maps the ending of a file's name, in lower case, to the class that reads it.
"""

from pipeline.lookup import Table

READERS: Table = {
    ".bmp": "vision.image:ImageReader",
    ".docx": "vision.docx:DocxReader",
    ".eml": "vision.mail:MailReader",
    ".gif": "vision.image:ImageReader",
    ".htm": "vision.web:HtmlReader",
    ".html": "vision.web:HtmlReader",
    ".jpeg": "vision.image:ImageReader",
    ".jpg": "vision.image:ImageReader",
    ".jsonl": "vision.jsonl:JsonlReader",
    ".markdown": "vision.text:MarkdownReader",
    ".md": "vision.text:MarkdownReader",
    ".pdf": "vision.pdf:PdfReader",
    ".png": "vision.image:ImageReader",
    ".tif": "vision.image:ImageReader",
    ".tiff": "vision.image:ImageReader",
    ".txt": "vision.text:TextReader",
    ".webp": "vision.image:ImageReader",
}
