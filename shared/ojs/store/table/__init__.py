"""The DynamoDB table: client, keys, schema, attribute values, and the classification of errors."""
