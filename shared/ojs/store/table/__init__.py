"""The table: client, keys, schema, values, and the meaning of its errors."""
