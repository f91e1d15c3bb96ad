"""Files and pages to text and pixels."""
