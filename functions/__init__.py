"""The Lambda functions, one folder each: parse the event, call one use case, build the response."""
