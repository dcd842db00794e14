"""How Sphinx shows the documentation.

Markdown by MyST, Furo's light and dark, nothing loaded from elsewhere.
"""

import os

project = "pyworker"
author = "the pyworker authors"
extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "attrs_block"]
html_theme = "furo"
html_title = "pyworker"
html_favicon = "static/icon.svg"
html_static_path = ["static"]
html_css_files = ["pyworker.css"]
# build.py says whether the playground's files come with this site.
html_js_files = [
    ("code.js", {"defer": "defer", "data-playground": os.environ.get("PYWORKER_PLAYGROUND", "no")})
]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "a11y-light"
pygments_dark_style = "github-dark-high-contrast"
highlight_language = "text"
# Code that a lexer cannot read through (an ellipsis in a DSN) is shown all the same.
suppress_warnings = ["misc.highlighting_failure", "myst.header"]
