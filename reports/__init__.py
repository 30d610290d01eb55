"""Reports: queries over a results database, statistics of paired differences, figures, HTML, Markdown and exports."""
