"""Open Job Spec on AWS, for installing: `ojs_aws.cdk` is a CDK construct."""
