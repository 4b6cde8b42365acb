"""The Lambda functions, one folder each: parse, call one use case, shape the answer."""
