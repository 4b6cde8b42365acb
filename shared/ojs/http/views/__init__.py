"""The shapes of answers, built from domain objects."""
