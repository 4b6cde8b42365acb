"""`ojs-aws`: the command line tool of operators."""
