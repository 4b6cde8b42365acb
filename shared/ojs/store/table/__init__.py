"""The table itself: client, keys, schema, values, and what its errors mean."""
