"""Sphinx's settings. Nothing of the site is fetched from elsewhere, when it is built or when it is read."""

from __future__ import annotations

from typing import Any

project = "blobsync"
extensions = ["myst_parser"]
# Links to headings, as GitHub makes them: down to the fourth level.
myst_heading_anchors = 4
# Quotes and ellipses, but no dashes: the two hyphens of an option stay what is typed.
smartquotes_action = "qe"
html_theme = "furo"
html_title = "blobsync"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options: dict[str, list[str]] = {"footer_icons": []}
# Shell sessions and trees of folders are in blocks without a language.
highlight_language = "none"


def setup(app: Any) -> None:
    """Called by Sphinx: only the search page loads what the search shows."""

    def add_scripts(app: Any, page: str, template: str, context: Any, doctree: Any) -> None:
        if page == "search":
            app.add_js_file("search_texts.js", loading_method="defer", priority=900)
            app.add_js_file("site_search.js", loading_method="defer", priority=901)

    app.connect("html-page-context", add_scripts)
