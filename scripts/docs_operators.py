"""mkdocs hook: puts the table of operators, taken from the registry at build time, where a page says so."""

PLACEHOLDER = "<!-- operators -->"


def operators_table() -> str:
    """Return the registered operators as a Markdown table under a line of counts."""
    from wellposed.cli import show
    from wellposed.signals import registry

    rows = show.operator_rows(registry.operators())
    lines = [f"{show.operator_counts(rows)}.", "", "| operator | rule | family | source |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(map(_cell, (f"`{row.operator}`", *row[1:]))) + " |" for row in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Called by mkdocs for every page."""
    return markdown.replace(PLACEHOLDER, operators_table()) if PLACEHOLDER in markdown else markdown
