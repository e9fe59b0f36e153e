"""How a report is shown: the page, report.md, the console, and figure.svg."""
