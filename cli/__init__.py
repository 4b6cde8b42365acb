"""`ojs-aws`: what an operator does from a terminal."""
