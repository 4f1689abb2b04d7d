"""Reports: results of the other packages as HTML pages, Markdown, CSV, JSON and figures."""
