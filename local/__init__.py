"""The local server: the deployed functions behind HTTP, with a DynamoDB engine on this machine.

No Lambda function contains this package.
"""
