"""How a report is shown: the page, Markdown, the console, and figure.png."""
