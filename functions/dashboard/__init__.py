"""The dashboard: the files of a web page. They need no authentication."""
