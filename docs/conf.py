"""How Sphinx builds the site. `docs/site.py` puts its sources together and calls it."""

import foldloom

project = "Foldloom"
author = "The Foldloom authors"
release = version = foldloom.__version__
copyright = "The Foldloom authors, Apache-2.0"

extensions = ["myst_parser"]
myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 3
templates_path: list[str] = []
exclude_patterns = ["extra"]
html_extra_path = ["extra"]
"""Pages of `fl.show`, which stand on their own."""
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme = "furo"
html_title = "Foldloom"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072b2", "color-brand-content": "#005f94"},
    "dark_css_variables": {"color-brand-primary": "#56b4e9", "color-brand-content": "#7cc4ee"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
highlight_language = "none"
"""What a page shows beside Python is output."""
suppress_warnings: list[str] = []
