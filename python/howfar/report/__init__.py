"""Pure renderers of a summary: terminal, HTML, Markdown, CSV, JSON."""
