"""The only code that knows DynamoDB and S3: keys, items, expressions, error classes."""
