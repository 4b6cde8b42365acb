"""`ojs-aws`: the command line tool for operators."""
