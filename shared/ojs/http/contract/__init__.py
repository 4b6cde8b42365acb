"""The contract: every operation, what it takes and answers, and the documents made from it."""
