"""Authentication: the Lambda authorizer of every route."""
