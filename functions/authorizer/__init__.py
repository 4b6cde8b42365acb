"""Who asks: the Lambda authorizer in front of every route."""
