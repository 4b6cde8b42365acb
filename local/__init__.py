"""The local server: the deployed functions, behind HTTP, on a DynamoDB engine of this machine.

Nothing here is ever shipped in a Lambda.
"""
