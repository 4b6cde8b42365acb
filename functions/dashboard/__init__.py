"""The dashboard: the files of a web page, for whoever asks."""
